// What a manifest says beside files and tensors: the ranks that wrote it, and the state of the run. No Kokkos.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "io/checkpoint/manifest.hpp"

namespace sestina {

nlohmann::ordered_json layout_json(const Manifest&);
nlohmann::ordered_json run_json(const RunState&);  // all but the step

// Strict, as all of a manifest. Error(bad_data).
void read_layout(const nlohmann::json&, Manifest&, const std::string& where);
RunState read_run(const nlohmann::json&, std::int64_t step, const std::string& where);

}  // namespace sestina
