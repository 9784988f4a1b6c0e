// An expert-parallel group over a communicator: the ExpertOps of the model. Ranks hold the experts in order, equally
// many each. The rows that a rank sends for one expert are one message, which comes to lie where the receiver wants it:
// nothing is staged, and nothing depends on what comes first. Messages leave at once, and are waited for in finish():
// on a host they travel while the space works; a device's library sends them off when they are waited for.
#pragma once
#include <utility>
#include <vector>

#include "core/model/seams.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/trace.hpp"

namespace sestina {

template <class Exec>
class ExpertGroup final : public ExpertOps<Exec> {
 public:
  // room: the most rows that may come to this rank in one pass (ModelPart::expert_rows). The trace (null: none) shows
  // the work that is done while rows travel, and must outlive the group.
  ExpertGroup(Communicator& group, std::int64_t room, Trace* trace = nullptr)
      : group_(group), room_(room), trace_(trace) {}
  int size() const override { return group_.size(); }
  int rank() const override { return group_.rank(); }

  // Error(bad_deck) when more rows come than there is room for.
  void exchange_counts(ExpertRows&) override;
  void send(const Exec&, const ExpertRows&, Matrix<const float, Exec>, Matrix<float, Exec>) override;
  void send(const Exec&, const ExpertRows&, Matrix<const bf16, Exec>, Matrix<bf16, Exec>) override;
  void send(const Exec&, const ExpertRows&, Matrix<const double, Exec>, Matrix<double, Exec>) override;
  void send_back(const Exec&, const ExpertRows&, Matrix<const float, Exec>, Matrix<float, Exec>) override;
  void send_back(const Exec&, const ExpertRows&, Matrix<const bf16, Exec>, Matrix<bf16, Exec>) override;
  void send_back(const Exec&, const ExpertRows&, Matrix<const double, Exec>, Matrix<double, Exec>) override;
  void finish(const Exec&, const SharedWork&) override;

  void complete() { group_.complete("expert-parallel group"); }  // called before a wait for the space

  // The calls since the last take_count(): what a step really sends.
  struct Count {
    std::int64_t counts = 0, sends = 0;  // sends: there and back
  };
  Count take_count() { return std::exchange(count_, {}); }

 private:
  // Rows [begin, begin + count) of the sorted rows of this rank, and of the rows at its own experts.
  struct Way {
    int peer = 0;
    std::int64_t count = 0, begin = 0;
  };
  void find_ways(const ExpertRows&);
  template <class T>
  void move(const Exec&, const char* name, const std::vector<Way>& from_ways, const T* from,
            const std::vector<Way>& to_ways, T* to, std::size_t width);

  Communicator& group_;
  std::int64_t room_;
  Trace* trace_;
  const char* on_their_way_ = "expert rows";  // the name of the rows that were sent off last
  std::vector<std::int64_t> by_source_;       // counts as they come: by source rank, and for each by own expert
  std::vector<Way> out_, in_;                 // by expert of the model; by source rank and, for each, own expert
  Count count_;
};

}  // namespace sestina
