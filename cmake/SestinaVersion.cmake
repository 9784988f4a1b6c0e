# version_values.hpp, what sestina::version() answers: version, commit, build type and compiler. The commit is looked up at
# every build, and nothing but kernels/base/version.cpp is compiled again for it.
set(version_header ${PROJECT_BINARY_DIR}/generated/version_values.hpp)
set(version_command ${CMAKE_COMMAND}
  -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DHEADER=${version_header} -DVERSION=${PROJECT_VERSION} -DMAJOR=${PROJECT_VERSION_MAJOR}
  -DMINOR=${PROJECT_VERSION_MINOR} -DPATCH=${PROJECT_VERSION_PATCH} "-DBUILD_TYPE=${CMAKE_BUILD_TYPE}"
  "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" -P ${PROJECT_SOURCE_DIR}/cmake/write_version.cmake)
execute_process(COMMAND ${version_command})
add_custom_target(sestina_version COMMAND ${version_command} BYPRODUCTS ${version_header} COMMENT "" VERBATIM)
add_dependencies(sestina_kernels sestina_version)
target_include_directories(sestina_kernels PRIVATE ${PROJECT_BINARY_DIR}/generated)
