# Rewrites the includes of installed headers: FOLDER/kernels/base/error.hpp is "kernels/base/error.hpp" to the source tree and
# "sestina/kernels/base/error.hpp" to those who use the package, whose own folders may be called kernels or core too.
# Run when installing (SestinaInstall.cmake). FOLDER: <prefix>/include/sestina.
file(GLOB_RECURSE headers ${FOLDER}/*.hpp)
foreach(header IN LISTS headers)
  file(READ "${header}" text)
  string(REGEX REPLACE "(#include \")(kernels|core|parallel|io|app)/" "\\1sestina/\\2/" rewritten "${text}")
  if(NOT rewritten STREQUAL text)
    file(WRITE "${header}" "${rewritten}")
  endif()
endforeach()
