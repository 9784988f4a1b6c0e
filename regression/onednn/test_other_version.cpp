// That the other oneDNN is compiled against and loaded, and not that of the build.
#include <gtest/gtest.h>
#include <link.h>

#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>

TEST(OtherOneDnn, IsTheOneThatIsLoaded) {
  EXPECT_EQ(dnnl::version()->major, DNNL_VERSION_MAJOR);
  EXPECT_EQ(dnnl::version()->minor, DNNL_VERSION_MINOR);
  int loaded = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* count) {
        *static_cast<int*>(count) += std::strstr(library->dlpi_name, "libdnnl") != nullptr;
        return 0;
      },
      &loaded);
  EXPECT_EQ(loaded, 1);
}
