# Which sources need the device compiler. In a CUDA build the C++ compiler is Kokkos' nvcc_wrapper; a source that does
# not include Kokkos, directly or through the project's headers, is handed to the host compiler instead, which is many
# times faster and knows all of C++20.

# sestina_includes_kokkos(file result): TRUE when the file includes Kokkos. Answers are kept for the whole configure run.
function(sestina_includes_kokkos file result)
  get_property(known GLOBAL PROPERTY sestina_kokkos_${file})
  if("${known}" STREQUAL "")
    set_property(GLOBAL PROPERTY sestina_kokkos_${file} FALSE)  # while looking: headers may include each other
    set(known FALSE)
    file(STRINGS ${file} lines REGEX "^[ \t]*#[ \t]*include")
    foreach(line IN LISTS lines)
      if(line MATCHES "<Kokkos|\"Kokkos")
        set(known TRUE)
      elseif(line MATCHES "\"([^\"]+)\"")
        set(header ${PROJECT_SOURCE_DIR}/${CMAKE_MATCH_1})
        if(EXISTS ${header})
          sestina_includes_kokkos(${header} known)
        endif()
      endif()
      if(known)
        break()
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY sestina_kokkos_${file} ${known})
    # An include that comes or goes may change the answer.
    if(Kokkos_ENABLE_CUDA)
      set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    endif()
  endif()
  set(${result} ${known} PARENT_SCOPE)
endfunction()

# sestina_without_kokkos(result sources...): those of the sources, with paths of the current folder or whole ones, that do not
# include Kokkos.
function(sestina_without_kokkos result)
  set(plain)
  foreach(source IN LISTS ARGN)
    get_filename_component(path ${source} ABSOLUTE)
    sestina_includes_kokkos(${path} needs_device_compiler)
    if(NOT needs_device_compiler)
      list(APPEND plain ${source})
    endif()
  endforeach()
  set(${result} ${plain} PARENT_SCOPE)
endfunction()

# sestina_host_sources(sources...): gives those without Kokkos to the host compiler. Call it in the folder of the target.
function(sestina_host_sources)
  if(Kokkos_ENABLE_CUDA)
    sestina_without_kokkos(plain ${ARGN})
    set_property(SOURCE ${plain} APPEND PROPERTY COMPILE_OPTIONS --host-only)
  endif()
endfunction()
