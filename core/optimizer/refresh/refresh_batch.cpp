#include "core/optimizer/refresh/refresh_batch.hpp"

#include <algorithm>

#include "core/optimizer/refresh/attempt.hpp"

namespace sestina {
namespace {

// What matrices that are decomposed together take.
template <class Space>
struct Decomposed {
  Decomposed(Workspace<Space>& workspace, std::size_t count, std::size_t d)
      : a(workspace.template take<float>(count * d, d)),
        vectors(workspace.template take<float>(count * d, d)),
        values(workspace.template take<float>(count, d)),
        info(workspace.template take<std::int32_t>(count)) {}
  Matrix<float, Space> a, vectors, values;
  Vector<std::int32_t, Space> info;
};

// What is taken for each of them after that.
template <class Space>
struct Finish {
  Finish(Workspace<Space>& workspace, std::size_t d)
      : sums(workspace, d), root(MatrixScratch<Space>(workspace, d, d).values) {
    declare_root_of_eigenvalues<Space, float>(workspace, d);
  }
  JudgedSums<Space> sums;
  Matrix<float, Space> root;
};

// Returns how many of so many jobs the workspace has room for at once.
template <class Space>
std::size_t most_together(const Stream<Space>& stream, std::size_t jobs, std::size_t d) {
  const auto fits = [&](std::size_t count) {
    return bytes_taken<Space>([&](Workspace<Space>& counter) {
             const Decomposed<Space> all(counter, count, d);
             stream.solver.template declare_eigh_batch<float>(counter, count, d);
             declare<Finish<Space>>(counter, d);
           }) <= stream.workspace.room();
  };
  while (jobs > 1 && !fits(jobs)) jobs = (jobs + 1) / 2;
  return jobs;
}

// Sets a (d, d) to the matrix whose eigenvectors a job asks for.
template <class Space>
void put_matrix(Stream<Space>& stream, const RefreshJob<Space>& job, Matrix<float, Space> a) {
  if (job.method == RefreshMethod::inverse_root_eigh)
    return root_matrix<Space, float>({stream.exec, stream.gemm, stream.solver, stream.workspace}, root_rule(job),
                                     job.factor, a);
  convert<Space, float, float>(stream.exec, flat<const float, Space>(job.factor), flat<float, Space>(a));
}

// Judges a decomposition, of which the solver has left `info` (1), and publishes what the job is for.
template <class Space>
void finish(Stream<Space>& stream, const RefreshJob<Space>& job, Matrix<const float, Space> basis,
            Vector<const float, Space> values, Vector<const std::int32_t, Space> info, Vector<double, Space> verdict) {
  const auto frame = stream.workspace.frame();
  const Finish<Space> pieces(stream.workspace, basis.extent(0));
  squares_of_chunks<Space, float>(stream.exec, flat<const float, Space>(job.factor), reduce_chunk, pieces.sums.factor);
  Kokkos::deep_copy(stream.exec, Vector<std::int32_t, Space>(stream.refresh.checks.solver.data(), 1), info);
  Attempt<Space, float> a{stream, stream.workspace, job, verdict, pieces.sums};
  if (job.method == RefreshMethod::eigen_basis) {
    a.publish_basis(basis, values);
    return;
  }
  root_of_eigenvalues<Space, float>(a.tools(), root_rule(job), basis, values, pieces.root);
  a.publish_root(basis, pieces.root);
}

}  // namespace

template <class Space>
void RefreshBatch<Space>::run(Stream<Space>& stream) {
  std::sort(jobs_.begin(), jobs_.end(),
            [](const PutOff& a, const PutOff& b) { return a.d() != b.d() ? a.d() < b.d() : a.number < b.number; });
  for (std::size_t begin = 0, end; begin < jobs_.size(); begin = end) {
    end = begin + 1;
    while (end < jobs_.size() && jobs_[end].d() == jobs_[begin].d()) ++end;
    end = begin + most_together(stream, end - begin, jobs_[begin].d());
    if (end == begin + 1)
      queue_job(stream, jobs_[begin].job, jobs_[begin].booking);
    else
      run_together(stream, begin, end);
  }
}

// The time of the decompositions is that of the first job.
template <class Space>
void RefreshBatch<Space>::run_together(Stream<Space>& stream, std::size_t begin, std::size_t end) {
  const std::size_t d = jobs_[begin].d();
  const auto frame = stream.workspace.frame();
  const Decomposed<Space> all(stream.workspace, end - begin, d);
  for (std::size_t i = begin; i < end; ++i) put_matrix(stream, jobs_[i].job, stacked_at(all.a, i - begin, d));
  for (std::size_t i = begin; i < end; ++i) {
    const std::size_t at = i - begin;
    const Vector<double, Space> verdict = stream.refresh.queued.start(jobs_[i].booking);
    if (at == 0) stream.solver.template eigh_batch<float>(all.a, all.vectors, all.values, all.info, stream.workspace);
    finish<Space>(stream, jobs_[i].job, stacked_at(all.vectors, at, d),
                  Vector<const float, Space>(all.values.data() + at * d, d),
                  Vector<const std::int32_t, Space>(all.info.data() + at, 1), verdict);
    stream.refresh.queued.finish(stream.exec);
  }
}

#define SESTINA_REFRESH_BATCH(Space) template class RefreshBatch<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_REFRESH_BATCH)

}  // namespace sestina
