# sestina_version.hpp: version, commit, build type and compiler as constants. The commit is looked up at every build.
set(version_header ${PROJECT_BINARY_DIR}/generated/sestina_version.hpp)
set(version_command ${CMAKE_COMMAND}
  -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DHEADER=${version_header} -DVERSION=${PROJECT_VERSION} "-DBUILD_TYPE=${CMAKE_BUILD_TYPE}"
  "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" -P ${PROJECT_SOURCE_DIR}/cmake/write_version.cmake)
execute_process(COMMAND ${version_command})
add_custom_target(sestina_version COMMAND ${version_command} BYPRODUCTS ${version_header} COMMENT "" VERBATIM)
add_dependencies(sestina_app sestina_version)
target_include_directories(sestina_app PRIVATE ${PROJECT_BINARY_DIR}/generated)
