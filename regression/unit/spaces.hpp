// The execution spaces that tests are typed over, which are those of the build, and numbers to and from their memory.
#pragma once
#include <string>
#include <type_traits>

#include "reference.hpp"

namespace sestina::reference {

// These spaces, and the device where there is one apart from the host.
template <class... Hosts>
using AndDevice =
    std::conditional_t<std::is_same_v<Host, Device>, testing::Types<Hosts...>, testing::Types<Hosts..., Device>>;
using RunSpaces = AndDevice<Host>;             // what a run computes on
using StreamSpaces = AndDevice<Serial, Host>;  // what the optimizer of a matrix works on

// What decompositions run on.
using StreamCases =
    std::conditional_t<std::is_same_v<Host, Device>,
                       testing::Types<Case<Serial, float>, Case<Serial, double>, Case<Host, float>, Case<Host, double>>,
                       testing::Types<Case<Serial, float>, Case<Serial, double>, Case<Host, float>, Case<Host, double>,
                                      Case<Device, float>, Case<Device, double>>>;

// Tests are called after their space: Refresh/OpenMP.ZeroFactorKeepsTheBasis.
struct SpaceNames {
  template <class Space>
  static std::string GetName(int) {
    return Space::name();
  }
};

// A view without gaps as an Array, a vector as one row; waits for its space.
template <class View>
Array values_of(const View& x) {
  typename View::execution_space().fence();
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x);
  Array a(View::rank == 2 ? x.extent(0) : 1, View::rank == 2 ? x.extent(1) : x.extent(0));
  for (std::size_t i = 0; i < a.values.size(); ++i)
    a.values[i] = static_cast<double>(static_cast<Acc<typename View::value_type>>(host.data()[i]));
  return a;
}

template <class View>
void set_values(const View& x, const Array& a) {
  using T = typename View::value_type;
  const auto host = Kokkos::create_mirror_view(x);
  for (std::size_t i = 0; i < a.values.size(); ++i) host.data()[i] = T(static_cast<Acc<T>>(a.values[i]));
  Kokkos::deep_copy(x, host);
}

// Returns all elements of a matrix without gaps.
template <class View>
auto line(const View& x) {
  return Vector<typename View::value_type, typename View::execution_space>(x.data(), x.size());
}

// Expects what one pass over many matrices computed to be what passes over each of them did: the same bits on a host.
template <class Space>
void expect_both(const Array& together, const Array& alone, const char* what) {
  if (is_host<Space>)
    expect_same(together, alone, what);
  else
    expect_close(together, alone, few_roundings, what);
}

}  // namespace sestina::reference
