# A room is a folder and a library: Sestina::<room>, made of every .cpp in it. Vendor twins (*_host.cpp, *_cuda.cpp, ...)
# are chosen by suffix; *_kokkos.cpp are for devices without a vendor twin of ours.
include(GNUInstallDirs)
include(SestinaHostSources)
# clang warns of each `omp simd` loop that it does not vectorise (maxima, because of NaN). That is about speed alone.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-pass-failed>)

# sestina_precompile(target kind headers...): reads these, and those that nearly every source includes, once instead of every
# time. Not for nvcc, so that a CUDA build notices where a source leans on what it does not include.
option(SESTINA_PRECOMPILE_HEADERS "Precompile Kokkos' and the standard library's headers (host builds)" ON)
# Targets of one kind are compiled with the same flags: the first one of them makes the file, the others read it.
function(sestina_precompile target kind)
  get_property(first GLOBAL PROPERTY sestina_precompiled_${kind})
  if(NOT SESTINA_PRECOMPILE_HEADERS OR Kokkos_ENABLE_CUDA)
    return()
  elseif(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    set_property(GLOBAL PROPERTY sestina_precompiled_${kind} ${target})
    target_precompile_headers(${target} PRIVATE <Kokkos_Core.hpp> <fmt/format.h> <algorithm> <filesystem> <functional> <map> <memory> <string> <vector> ${ARGN})
  endif()
endfunction()

# What GCC says of unnamed names in headers is meant for sources, which a source that includes several of them is not.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND NOT Kokkos_ENABLE_CUDA)
  add_compile_options(-Wno-subobject-linkage)
endif()

# sestina_never_unity(sources...): where CMAKE_UNITY_BUILD compiles several sources as one, these stay alone. A class whose
# members lie in several sources is instantiated by each of them, which one compilation may do once only.
function(sestina_never_unity)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# sestina_split_plain(room list): puts those sources of a list that do not include Kokkos into an object library for the host
# compiler, in which several are compiled as one: CMake leaves sources with options of their own out of that.
function(sestina_split_plain room list)
  sestina_without_kokkos(plain ${${list}})
  list(REMOVE_ITEM ${list} ${plain})
  add_library(sestina_${room}_plain OBJECT ${plain})
  target_link_libraries(sestina_${room}_plain PRIVATE $<TARGET_PROPERTY:sestina_${room},LINK_LIBRARIES>)
  target_compile_definitions(sestina_${room}_plain PRIVATE $<TARGET_PROPERTY:sestina_${room},COMPILE_DEFINITIONS>)
  target_include_directories(sestina_${room}_plain PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(sestina_${room}_plain PRIVATE --host-only -Wall -Wextra)
  set_target_properties(sestina_${room}_plain PROPERTIES POSITION_INDEPENDENT_CODE ON)
  set(${list} ${${list}} $<TARGET_OBJECTS:sestina_${room}_plain> PARENT_SCOPE)
endfunction()

function(sestina_room room)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/(sestina|main|address_limit)\\.cpp$|/spack_repo/|^${CMAKE_CURRENT_SOURCE_DIR}/(bench|experiments)/")
  if(Kokkos_ENABLE_CUDA)
    list(FILTER sources EXCLUDE REGEX "_none\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "_(cuda|nccl)\\.cpp$")
  endif()
  if(NOT SESTINA_PORTABLE_DEVICE)
    list(FILTER sources EXCLUDE REGEX "_kokkos\\.cpp$")
  endif()
  if(SESTINA_ENABLE_NCCL)
    foreach(source IN LISTS sources)  # takes the place of its twin for CUDA alone
      if(source MATCHES "_nccl\\.cpp$")
        string(REGEX REPLACE "_nccl\\.cpp$" "_cuda.cpp" twin ${source})
        list(REMOVE_ITEM sources ${twin})
      endif()
    endforeach()
  else()
    list(FILTER sources EXCLUDE REGEX "_nccl\\.cpp$")
  endif()
  if(SESTINA_ENABLE_MPI)
    list(FILTER sources EXCLUDE REGEX "_alone\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "_mpi\\.cpp$")
  endif()
  if(SESTINA_ENABLE_CUDNN)
    list(FILTER sources EXCLUDE REGEX "_no_cudnn\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "_with_cudnn\\.cpp$")
  endif()
  if(NOT SESTINA_ENABLE_ONEDNN)
    list(FILTER sources EXCLUDE REGEX "_onednn\\.cpp$")
  endif()
  if(SESTINA_ENABLE_URING)
    list(FILTER sources EXCLUDE REGEX "_absent\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "_uring\\.cpp$")
  endif()
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(FILTER sources EXCLUDE REGEX "_avx(2|512)\\.cpp$")
  endif()
  if(NOT sources)
    set(sources ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp)
    file(TOUCH ${sources})
  endif()
  if(Kokkos_ENABLE_CUDA AND NOT room STREQUAL kernels)  # whose sources have flags of their own
    sestina_split_plain(${room} sources)
  endif()
  add_library(sestina_${room} ${sources})  # static, or shared with BUILD_SHARED_LIBS
  add_library(Sestina::${room} ALIAS sestina_${room})
  set_target_properties(sestina_${room} PROPERTIES EXPORT_NAME ${room} POSITION_INDEPENDENT_CODE ON DEFINE_SYMBOL ""
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_include_directories(sestina_${room} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(sestina_${room} PUBLIC ${ARGN})
  target_compile_options(sestina_${room} PRIVATE -Wall -Wextra)
  if(Kokkos_ENABLE_CUDA)
    # fmt 9 makes nothing constexpr under nvcc, and then its own checks of format strings do not compile.
    target_compile_definitions(sestina_${room} PUBLIC FMT_USE_CONSTEXPR=1)
  endif()
  if(room STREQUAL kernels)  # has flags of its own
    sestina_host_sources(${sources})
    sestina_precompile(sestina_kernels kernels)
  else()
    sestina_precompile(sestina_${room} rooms)
  endif()

  install(TARGETS sestina_${room} EXPORT SestinaTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR PARENT_PATH parent)
  if(parent STREQUAL PROJECT_SOURCE_DIR)  # a room in a folder of another is installed with it
    install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sestina FILES_MATCHING PATTERN "*.hpp")
  endif()
endfunction()

# sestina_program(name main library): a program of the room that is called library, installed, and one of `programs`.
function(sestina_program name main library)
  add_executable(${name} ${main} ${PROJECT_SOURCE_DIR}/app/address_limit.cpp)
  target_link_libraries(${name} PRIVATE ${library})
  add_dependencies(programs ${name})
  install(TARGETS ${name})
endfunction()

# Installed programs find shared libraries of ours next to them, wherever the prefix is moved, and those of others where
# they were linked.
function(sestina_relative_rpath)
  if(CMAKE_INSTALL_RPATH)
    return()
  endif()
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_LIBDIR BASE_DIRECTORY ${CMAKE_INSTALL_BINDIR} OUTPUT_VARIABLE from_bin)
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_LIBDIR BASE_DIRECTORY ${CMAKE_INSTALL_LIBEXECDIR}/sestina OUTPUT_VARIABLE from_tests)
  set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/${from_bin};$ORIGIN/${from_tests}" PARENT_SCOPE)
  set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON PARENT_SCOPE)
endfunction()
