// How a manifest and the parts of one are read: JSON with its own digest as last member, every member by name, nothing
// twice, nothing unknown. Error(bad_data) names the place. No Kokkos.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace sestina {

inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 53;  // whole numbers that every JSON reader keeps exact

// The members of one JSON object, each once; every failure names the member.
class Members {
 public:
  Members(const nlohmann::json& object, std::string where);
  bool has(const char* key) const { return object_.contains(key); }
  const nlohmann::json& get(const char* key);
  std::int64_t count(const char* key, std::int64_t max = kMaxCount);
  std::uint64_t word(const char* key);  // any 64-bit value
  double number_or_null(const char* key);
  std::string text(const char* key);
  std::string digest(const char* key, std::size_t digits);
  const nlohmann::json& list(const char* key);
  void finish() const;  // no members but those read

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::size_t read_ = 0;
};

// Checks the digest, then reads what it vouches for.
nlohmann::json parse_sealed(std::string_view text, const std::string& where);
// The text of an object with its digest.
std::string sealed_text(const nlohmann::ordered_json& object);

}  // namespace sestina
