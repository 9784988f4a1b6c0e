// Reads golden HDF5 files in tests: whole datasets, and attributes that are numbers or text.
#pragma once
#include <hdf5.h>

#include <array>
#include <string>
#include <vector>

#include "kernels/base/error.hpp"

namespace sestina {

class Hdf5Reader {
 public:
  explicit Hdf5Reader(const std::string& path)
      : file_(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)), path_(path) {
    if (file_ < 0) fail(ExitCode::input_missing, "{}: cannot be opened", path);
  }
  ~Hdf5Reader() { H5Fclose(file_); }
  Hdf5Reader(const Hdf5Reader&) = delete;
  Hdf5Reader& operator=(const Hdf5Reader&) = delete;

  const std::string& path() const { return path_; }
  std::vector<double> numbers(const std::string& name) const { return read<double>(name, H5T_NATIVE_DOUBLE); }
  std::vector<std::int32_t> integers(const std::string& name) const {
    return read<std::int32_t>(name, H5T_NATIVE_INT32);
  }
  // Attribute of a group or dataset ("/" is the root).
  double attribute(const std::string& object, const std::string& name) const {
    double value = 0;
    const hid_t id = H5Aopen_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
    const bool ok = id >= 0 && H5Aread(id, H5T_NATIVE_DOUBLE, &value) >= 0;
    if (id >= 0) H5Aclose(id);
    if (!ok) fail(ExitCode::bad_data, "{}: no number {} of {}", path_, name, object);
    return value;
  }
  // All values of an attribute that is an array.
  std::vector<double> attributes(const std::string& object, const std::string& name) const {
    const hid_t id = H5Aopen_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
    if (id < 0) fail(ExitCode::bad_data, "{}: no numbers {} of {}", path_, name, object);
    const hid_t space = H5Aget_space(id);
    std::vector<double> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
    const bool ok = H5Aread(id, H5T_NATIVE_DOUBLE, values.data()) >= 0;
    H5Sclose(space);
    H5Aclose(id);
    if (!ok) fail(ExitCode::bad_data, "{}: {} of {} cannot be read", path_, name, object);
    return values;
  }

  bool has(const std::string& object, const std::string& attribute) const {
    return H5Lexists(file_, object.c_str(), H5P_DEFAULT) >= 0 &&
           H5Aexists_by_name(file_, object.c_str(), attribute.c_str(), H5P_DEFAULT) > 0;
  }
  bool has(const std::string& object) const { return H5Lexists(file_, object.c_str(), H5P_DEFAULT) > 0; }
  // Names in a group, empty when there is no such group.
  std::vector<std::string> names(const std::string& group) const {
    std::vector<std::string> found;
    if (!has(group)) return found;
    H5G_info_t info;
    if (H5Gget_info_by_name(file_, group.c_str(), &info, H5P_DEFAULT) < 0) return found;
    for (hsize_t i = 0; i < info.nlinks; ++i) {
      std::array<char, 256> name{};
      H5Lget_name_by_idx(file_, group.c_str(), H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size(), H5P_DEFAULT);
      found.emplace_back(name.data());
    }
    return found;
  }

  // Text attribute of variable length.
  std::string text(const std::string& object, const std::string& name) const {
    const hid_t id = H5Aopen_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
    if (id < 0) fail(ExitCode::bad_data, "{}: no text {} of {}", path_, name, object);
    const hid_t type = H5Aget_type(id);
    char* value = nullptr;
    const bool ok = H5Tis_variable_str(type) > 0 && H5Aread(id, type, &value) >= 0 && value != nullptr;
    const std::string result = ok ? value : "";
    if (value != nullptr) H5free_memory(value);
    H5Tclose(type);
    H5Aclose(id);
    if (!ok) fail(ExitCode::bad_data, "{}: {} of {} is no text", path_, name, object);
    return result;
  }
  std::vector<std::int64_t> shape(const std::string& name) const {
    const hid_t set = H5Dopen2(file_, name.c_str(), H5P_DEFAULT);
    if (set < 0) fail(ExitCode::bad_data, "{}: no dataset {}", path_, name);
    const hid_t space = H5Dget_space(set);
    std::vector<hsize_t> dims(static_cast<std::size_t>(H5Sget_simple_extent_ndims(space)));
    H5Sget_simple_extent_dims(space, dims.data(), nullptr);
    H5Sclose(space);
    H5Dclose(set);
    return {dims.begin(), dims.end()};
  }

 private:
  template <class Element>
  std::vector<Element> read(const std::string& name, hid_t type) const {
    const hid_t set = H5Dopen2(file_, name.c_str(), H5P_DEFAULT);
    if (set < 0) fail(ExitCode::bad_data, "{}: no dataset {}", path_, name);
    const hid_t space = H5Dget_space(set);
    std::vector<Element> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
    const bool ok = H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0;
    H5Sclose(space);
    H5Dclose(set);
    if (!ok) fail(ExitCode::bad_data, "{}: {} cannot be read", path_, name);
    return values;
  }

  hid_t file_;
  std::string path_;
};

}  // namespace sestina
