#include "io/report/trace_write.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "io/store/output_file.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

using nlohmann::json;

constexpr double microsecond = 1e-3;  // per nanosecond

std::string name_of(const Trace::Event& event) {
  const std::string name = event.number < 0 ? event.name : fmt::format("{} {}", event.name, event.number);
  return event.kind == Trace::Kind::wait ? "wait for " + name : name;
}

const char* category_of(Trace::Kind kind) {
  using Kind = Trace::Kind;
  switch (kind) {
    case Kind::work:
      return "work";
    case Kind::wait:
      return "wait";
    case Kind::block_read:
      return "state read";
    case Kind::block_write:
      return "state write";
    case Kind::block_wait:
      return "state wait";
    case Kind::worker_wait:
      return "state wait of a worker";
    case Kind::exchange:
    case Kind::count:
      break;
  }
  return "exchange";
}

// Writes the label of a rank or one of its rows in a viewer, and their order.
void add_label(std::string& text, int pid, int tid, const char* of, const std::string& label, int place) {
  const std::string scope = of;
  text += json{{"ph", "M"}, {"name", scope + "_name"}, {"pid", pid}, {"tid", tid}, {"args", {{"name", label}}}}.dump();
  text += ",\n";
  text +=
      json{{"ph", "M"}, {"name", scope + "_sort_index"}, {"pid", pid}, {"tid", tid}, {"args", {{"sort_index", place}}}}
          .dump();
  text += ",\n";
}

// The thread of a row. Perfetto takes a thread 0 for the main one of its process, whose number is that of the process:
// the first row is that, and no other row has the number of any process.
int thread_of(int row, int rank, int ranks) { return row == 0 ? rank : ranks + row; }

json line_of(const Trace::Event& event, int rank, int ranks) {
  json line{{"name", name_of(event)}, {"ts", static_cast<double>(event.begin) * microsecond}, {"pid", rank}};
  if (event.kind == Trace::Kind::count) {
    line.update({{"ph", "C"}, {"args", {{"value", event.value}}}});
    return line;
  }
  line.update({{"ph", "X"},
               {"cat", category_of(event.kind)},
               {"dur", static_cast<double>(event.end - event.begin) * microsecond},
               {"tid", thread_of(event.row, rank, ranks)}});
  return line;
}

// The two ends of what happened to a block of state: bytes, tiers and the update that counts it are at the first.
std::string block_lines(const Trace::Event& event, int rank, int ranks, std::size_t id) {
  json line = line_of(event, rank, ranks);
  line.erase("dur");
  line.update({{"ph", "b"},
               {"name", event.name},
               {"id2", {{"local", fmt::format("0x{:x}", id)}}},
               {"args", {{"bytes", event.value}, {"from", event.from}, {"to", event.to}, {"update", event.number}}}});
  std::string text = line.dump() + ",\n";
  line.update({{"ph", "e"}, {"ts", static_cast<double>(event.end) * microsecond}});
  line.erase("args");
  return text + line.dump();
}

// Writes one event per line.
std::string events_of(const Trace& trace, int rank, int ranks, const std::string& label) {
  std::string text;
  add_label(text, rank, rank, "process", label, rank);
  for (int row = 0; const std::string& name : trace.rows()) {
    add_label(text, rank, thread_of(row, rank, ranks), "thread", name, row);
    ++row;
  }
  for (const Trace::Event& event : trace.events()) {
    const auto id = static_cast<std::size_t>(&event - trace.events().data());
    text += event.from != nullptr ? block_lines(event, rank, ranks, id) : line_of(event, rank, ranks).dump();
    text += ",\n";
  }
  text += json{{"ph", "i"},
               {"name", "end"},
               {"s", "p"},
               {"ts", 0},
               {"pid", rank},
               {"tid", rank},
               {"args", {{"dropped", trace.dropped()}}}}
              .dump();
  return text;
}

}  // namespace

void write_trace(const std::string& path, const Trace& trace, Communicator& world, const std::string& label) {
  std::optional<OutputFile> file;
  std::optional<Error> problem;
  const auto attempt = [&](const auto& write) {  // a rank that failed still takes the texts of the others
    if (world.rank() > 0 || problem) return;
    try {
      write();
    } catch (const Error& error) {
      problem = error;
    }
  };
  attempt([&] {
    file.emplace(path);
    file->write("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n");
  });
  for (int rank = 0; rank < world.size(); ++rank) {  // one after another: the texts may be long
    std::string text = rank == world.rank() ? events_of(trace, rank, world.size(), label) : "";
    world.broadcast(text, rank);
    attempt([&] {
      if (rank > 0) file->write(",\n");
      file->write(text);
    });
  }
  attempt([&] {
    file->write("\n]}\n");
    file->commit();
  });
  if (problem) throw *problem;
}

}  // namespace sestina
