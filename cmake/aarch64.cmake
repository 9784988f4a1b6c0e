# Toolchain file: cross compiles for 64-bit ARM with Debian's g++-aarch64-linux-gnu; programs and tests run under qemu-user.
# SESTINA_SYSROOT is a folder into which Debian's arm64 packages of the libraries were unpacked, absolute links made
# relative; without it they are those installed next to the machine's own (dpkg --add-architecture arm64).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(SESTINA_MARCH "" CACHE STRING "-march of all host code: none, for any such processor")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SESTINA_SYSROOT)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
if(SESTINA_SYSROOT)
  set(CMAKE_SYSROOT ${SESTINA_SYSROOT})
  list(APPEND CMAKE_CROSSCOMPILING_EMULATOR -L ${SESTINA_SYSROOT})
endif()
set(ENV{PKG_CONFIG_LIBDIR} ${SESTINA_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${SESTINA_SYSROOT}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${SESTINA_SYSROOT})
