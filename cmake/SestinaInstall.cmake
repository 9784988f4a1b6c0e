# Programs, libraries, headers, decks, the regression suite (bin/sestina-regression) and the package config: find_package(Sestina) gives Sestina::kernels ... Sestina::app, Sestina::bench and Sestina::experiments.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Sestina)
if(TARGET manual)
  install(DIRECTORY ${PROJECT_BINARY_DIR}/share/ DESTINATION ${CMAKE_INSTALL_DATADIR})  # app/CMakeLists.txt makes it
endif()
# After the rooms have installed their headers (sestina_room).
install(CODE "set(FOLDER \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/sestina\")
include(\"${PROJECT_SOURCE_DIR}/cmake/installed_includes.cmake\")")
set(data_dir ${CMAKE_INSTALL_DATADIR}/sestina)
install(DIRECTORY inputs/ DESTINATION ${data_dir}/inputs)
install(DIRECTORY app/slurm/ DESTINATION ${data_dir}/slurm COMPONENT slurm USE_SOURCE_PERMISSIONS OPTIONAL)
install(DIRECTORY regression/install/own_optimizer DESTINATION ${data_dir}/examples)
if(SESTINA_ENABLE_TESTS)
  # Where the suite lies as in the source tree: its programs, cases and faults find their data from there.
  configure_file(regression/sestina-regression.in ${PROJECT_BINARY_DIR}/sestina-regression @ONLY)
  install(PROGRAMS ${PROJECT_BINARY_DIR}/sestina-regression DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES regression/run_case.py DESTINATION ${data_dir}/regression)
  install(FILES regression/bench/load_ratios.py DESTINATION ${data_dir}/regression/bench)
  foreach(part cases faults walk data golden)
    install(DIRECTORY regression/${part} DESTINATION ${data_dir}/regression PATTERN CMakeLists.txt EXCLUDE PATTERN __pycache__ EXCLUDE)
  endforeach()
endif()
install(EXPORT SestinaTargets NAMESPACE Sestina:: DESTINATION ${package_dir})
configure_package_config_file(cmake/SestinaConfig.cmake.in ${PROJECT_BINARY_DIR}/SestinaConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/SestinaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/SestinaConfig.cmake ${PROJECT_BINARY_DIR}/SestinaConfigVersion.cmake
  cmake/SestinaDependencies.cmake cmake/FindDNNL.cmake cmake/FindNCCL.cmake DESTINATION ${package_dir})
