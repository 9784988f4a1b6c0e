#include "io/tokens/source_digest.hpp"

#include "io/tokens/token_file_forms.hpp"

namespace sestina {

FileDigest digest_source(const DataSource& source, const Poll& poll) {
  switch (source.format) {
    case DataSource::Format::megatron: {
      const FileDigest index = digest_files({source.path + ".idx"}, poll, true);
      FileDigest all = digest_files({source.path + ".bin"}, poll);
      all.size += index.size;
      const std::string both = index.xxh3_128 + all.xxh3_128;
      all.xxh3_128 = digest128(both.data(), both.size());
      return all;
    }
    case DataSource::Format::llmc:
      return digest_files(list_token_files(source.path, ".bin"), poll);
    case DataSource::Format::npy:
      return digest_files(list_token_files(source.path, ".npy"), poll);
    case DataSource::Format::jsonl:
      return digest_files(list_text_source(source.path, TextForm::jsonl), poll);
    case DataSource::Format::text:
      break;
  }
  return digest_files(list_text_source(source.path, TextForm::text), poll);
}

FileDigest digest_hf_folder(const std::string& folder, const Poll& poll) {
  std::vector<std::string> files = list_token_files(folder, ".safetensors");
  files.push_back(folder + "/config.json");
  return digest_files(files, poll);
}

}  // namespace sestina
