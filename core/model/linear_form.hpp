// The mathematics of a form of weights (core/layout/weight_form.hpp): one linear layer, forward and the two parts of
// its backward pass, its merge, and its way from and to a dense weight. Objects hold nothing; tensors come with each
// call.
#pragma once
#include "core/layout/rotation_record.hpp"
#include "core/model/context.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {

template <class Exec, class T>
class LinearForm {
 public:
  using A = Acc<T>;
  virtual ~LinearForm() = default;

  // Computes y (N, out) from x (N, in) for N rows; kept: (N, kept columns), or empty: nothing is kept.
  virtual void forward(Context<Exec>&, const FormedWeight&, Matrix<const T, Exec> x, Matrix<T, Exec> kept,
                       Matrix<T, Exec> y) const = 0;
  // Sets, or adds to, dx (N, in) the gradient from dy (N, out); passed (N, passed columns) is for the weight part.
  virtual void backward_input(Context<Exec>&, const FormedWeight&, Matrix<const T, Exec> dy, bool add,
                              Matrix<T, Exec> passed, Matrix<T, Exec> dx) const = 0;
  // Sets, or adds to, the gradients of what is trained; where gradient.sums is there, what they are made of. gradient:
  // its parts, null where they are frozen.
  virtual void backward_weight(Context<Exec>&, const FormedWeight&, Matrix<const T, Exec> dy, Matrix<const T, Exec> x,
                               Matrix<const T, Exec> kept, Matrix<const T, Exec> passed, bool accumulate,
                               const FormedWeight& gradient) const = 0;
  // Sets the gradients from what gradient.sums has, which is used up.
  virtual void finish_gradient(Context<Exec>&, const FormedWeight&, const FormedWeight& /*gradient*/) const {}
  // Sets what is frozen so that the layer, with what is trained as it begins, is `dense` (out, in). May wait for the
  // space.
  virtual void assign(Context<Exec>&, const FormedWeight&, std::uint64_t seed, Matrix<const A, Exec> dense) const = 0;
  // Computes the weight (out, in) that the layer is.
  virtual void effective(Context<Exec>&, const FormedWeight&, Matrix<A, Exec> dense) const = 0;
  // Runs merge `number` (from 1): the layer stays what it is. May wait for the space.
  virtual void merge(Context<Exec>&, const FormedWeight&, std::uint64_t seed, std::int64_t number) const = 0;
  // Measures rotations, where the form has some, in scratch that declare_measure takes. Fences.
  virtual RotationMeasure measure(Context<Exec>&, const FormedWeight&, Workspace<Exec>&, Solver<Exec>&) const {
    return {};
  }
  // Returns the largest_q of such a measure alone. Fences.
  virtual double largest_rotation(Context<Exec>&, const FormedWeight&, Workspace<Exec>&) const { return 0; }
  virtual void declare_measure(Workspace<Exec>&, const LinearOptions& /*here*/, const FormShape&, TensorCut,
                               RotationLook) const {}
};

// Returns the form by its name in the model's options, which must not be dense.
template <class Exec, class T>
const LinearForm<Exec, T>& linear_form(const LinearOptions&);

// Return the forms poet-x and lora, in poet_x_linear.cpp and lora_linear.cpp.
template <class Exec, class T>
const LinearForm<Exec, T>& poet_x_linear();
template <class Exec, class T>
const LinearForm<Exec, T>& lora_linear();

}  // namespace sestina
