// What a tokenizer.json puts before a text: its post_processor. No Kokkos.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sestina {

// The ids that stand before a single text: TemplateProcessing ("<s> $A"), RobertaProcessing and BertProcessing, alone
// or in a Sequence, whose later members add theirs in front; ByteLevel and null add none. What comes after the text is
// for pairs and for training, and is not looked at. Error(bad_data) with `where` on other kinds and damage.
std::vector<std::int32_t> post_processor_prefix(const nlohmann::json& post_processor, const std::string& where);

}  // namespace sestina
