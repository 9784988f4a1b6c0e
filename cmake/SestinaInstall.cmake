# Programs, libraries, headers, decks and the package config: find_package(Sestina) gives Sestina::kernels ... Sestina::app.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Sestina)
if(TARGET sestina)
  install(TARGETS sestina)
endif()
install(DIRECTORY app/slurm/ DESTINATION ${CMAKE_INSTALL_DATADIR}/sestina/slurm COMPONENT slurm)
install(DIRECTORY inputs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/sestina/inputs)
install(FILES ${PROJECT_BINARY_DIR}/generated/sestina_version.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sestina)
install(EXPORT SestinaTargets NAMESPACE Sestina:: DESTINATION ${package_dir})
configure_package_config_file(cmake/SestinaConfig.cmake.in ${PROJECT_BINARY_DIR}/SestinaConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/SestinaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/SestinaConfig.cmake ${PROJECT_BINARY_DIR}/SestinaConfigVersion.cmake
  cmake/SestinaDependencies.cmake cmake/FindDNNL.cmake cmake/FindNCCL.cmake DESTINATION ${package_dir})
