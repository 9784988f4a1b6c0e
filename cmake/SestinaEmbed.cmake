# sestina_embed(target source header namespace files...): a header with the text of each file as a std::string_view, made
# again when a file changes; source, one of target's, includes it as "<header>". "report.css" becomes
# sestina::<namespace>::report_css.
function(sestina_embed target source header namespace)
  set(output ${PROJECT_BINARY_DIR}/generated/${header})
  add_custom_command(OUTPUT ${output} DEPENDS ${ARGN} ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
    COMMAND ${CMAKE_COMMAND} -DHEADER=${output} -DNAMESPACE=${namespace} "-DFILES=${ARGN}" -P ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
    VERBATIM)
  foreach(library ${target} ${target}_plain)
    if(TARGET ${library})
      target_sources(${library} PRIVATE ${output})
    endif()
  endforeach()
  set_property(SOURCE ${source} APPEND PROPERTY INCLUDE_DIRECTORIES ${PROJECT_BINARY_DIR}/generated)
endfunction()
