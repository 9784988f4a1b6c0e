# cuDNN, and its front end of headers alone: CUDNN_INCLUDE_DIRS of both, and CUDNN_LIBRARY, which programs load when they run.
# Neither brings a file for CMake: cuDNN lies next to CUDA, in a system folder, or under CUDNN_ROOT; the front end there too,
# or under CUDNN_FRONTEND_ROOT.
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include)
get_filename_component(cudnn_prefix "${CUDNN_INCLUDE_DIR}" DIRECTORY)
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${cudnn_prefix} PATH_SUFFIXES lib lib64)
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ${CUDNN_FRONTEND_ROOT} ENV CUDNN_FRONTEND_ROOT ${CUDNN_INCLUDE_DIR} PATH_SUFFIXES include)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN REQUIRED_VARS CUDNN_LIBRARY CUDNN_INCLUDE_DIR CUDNN_FRONTEND_INCLUDE_DIR)
set(CUDNN_INCLUDE_DIRS ${CUDNN_FRONTEND_INCLUDE_DIR} ${CUDNN_INCLUDE_DIR})
mark_as_advanced(CUDNN_INCLUDE_DIR CUDNN_FRONTEND_INCLUDE_DIR CUDNN_LIBRARY)
