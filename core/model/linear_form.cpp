#include "core/model/linear_form.hpp"

namespace sestina {

template <class Exec, class T>
const LinearForm<Exec, T>& poet_x_linear();
template <class Exec, class T>
const LinearForm<Exec, T>& lora_linear();
template <class Exec, class T>
const LinearForm<Exec, T>& int8_linear();

// The second half of the table in core/layout/weight_form.cpp.
template <class Exec, class T>
const LinearForm<Exec, T>& linear_form(const LinearOptions& options) {
  if (options.form == "poet-x") return poet_x_linear<Exec, T>();
  if (options.form == "lora") return lora_linear<Exec, T>();
  if (options.form == "int8") return int8_linear<Exec, T>();
  fail(ExitCode::internal, "no form of weights \"{}\"", options.form);
}

#define SESTINA_LINEAR_FORM(Exec, T) template const LinearForm<Exec, T>& linear_form<Exec, T>(const LinearOptions&);
SESTINA_INSTANTIATE(SESTINA_LINEAR_FORM)

}  // namespace sestina
