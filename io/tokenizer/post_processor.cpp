#include "io/tokenizer/post_processor.hpp"

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

class PostProcessorReader {
 public:
  explicit PostProcessorReader(const std::string& where) : where_(where) {}

  Ids prefix(const json& object) const {
    if (object.is_null()) return {};
    const std::string type = text(object, "type");
    if (type == "ByteLevel") return {};
    if (type == "TemplateProcessing") return of_template(object);
    if (type == "RobertaProcessing" || type == "BertProcessing") return {of_pair(object, "cls")};
    if (type != "Sequence")
      refuse(fmt::format(
          "of type \"{}\" is not supported; TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel and "
          "Sequence are",
          type));
    Ids all;
    for (const json& part : list(object, "processors")) {
      const Ids ahead = prefix(part);
      all.insert(all.begin(), ahead.begin(), ahead.end());
    }
    return all;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ExitCode::bad_data, "{}: post_processor {}", where_, what);
  }
  const json& member(const json& object, const char* name) const {
    if (!object.is_object() || !object.contains(name)) refuse(fmt::format("lacks \"{}\"", name));
    return object[name];
  }
  const json& list(const json& object, const char* name) const {
    const json& value = member(object, name);
    if (!value.is_array()) refuse(fmt::format("has a \"{}\" that is no list", name));
    return value;
  }
  std::string text(const json& object, const char* name) const {
    const json& value = member(object, name);
    if (!value.is_string()) refuse(fmt::format("has a \"{}\" that is no string", name));
    return value.get<std::string>();
  }
  std::int32_t id(const json& value) const {
    constexpr double largest = 1 << 24;  // as in the vocabulary
    if (!value.is_number_integer() || value.get<double>() < 0 || value.get<double>() > largest)
      refuse(fmt::format("has the id {}", value.dump(-1, ' ', true).substr(0, 40)));
    return value.get<std::int32_t>();
  }
  std::int32_t of_pair(const json& object, const char* name) const {  // ["[CLS]", 101]
    const json& pair = list(object, name);
    if (pair.size() != 2) refuse(fmt::format("has a \"{}\" that is not a token with its id", name));
    return id(pair[1]);
  }

  // "single" is a list of {"SpecialToken": {"id": name}} and {"Sequence": ...}, the ids stand in "special_tokens".
  Ids of_template(const json& object) const {
    Ids ids;
    for (const json& piece : list(object, "single")) {
      if (!piece.is_object() || !piece.contains("SpecialToken")) return ids;
      const std::string name = text(piece["SpecialToken"], "id");
      for (const json& one : list(member(member(object, "special_tokens"), name.c_str()), "ids"))
        ids.push_back(id(one));
    }
    refuse("has a template without a text");
  }

  const std::string& where_;
};

}  // namespace

std::vector<std::int32_t> post_processor_prefix(const json& post_processor, const std::string& where) {
  return PostProcessorReader(where).prefix(post_processor);
}

}  // namespace sestina
