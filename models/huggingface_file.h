// A Hugging Face config.json as an object of keys: values by type, the place of each for errors, and which keys nobody asked for.
// Knows no model.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stepsim {

// One line of printable ASCII, cut to 60 characters: text of a foreign file inside a message.
std::string printable(std::string_view text);

// The object of the file with the place of each key. A key inside a key is "outer.inner". null counts as not given. A value of another type
// than the one asked for is an InputError at its key.
class ConfigFile {
 public:
  // InputError for what is no JSON object, has a key twice, or is nested too deep.
  ConfigFile(const std::string& text, const std::string& file);
  ~ConfigFile();
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;

  bool named(const std::string& key) const;
  bool given(const std::string& key) const;
  bool is_object(const std::string& key) const;
  std::int64_t whole(const std::string& key) const;
  std::int64_t whole(const std::string& key, std::int64_t otherwise) const { return given(key) ? whole(key) : otherwise; }
  bool flag(const std::string& key, bool otherwise) const;
  double number(const std::string& key, double otherwise) const;
  std::string word(const std::string& key) const;
  std::string word(const std::string& key, const std::string& otherwise) const { return given(key) ? word(key) : otherwise; }
  std::vector<std::string> words(const std::string& key) const;           // none if it is not given
  std::vector<std::int64_t> whole_numbers(const std::string& key) const;  // likewise

  // Keys of the object that no reader has asked about and that are not in `harmless`, in their order; null ones do not count.
  std::vector<std::string> unread(std::span<const std::string_view> harmless) const;

  // At the key, or at the object where it is not named.
  [[noreturn]] void fail(const std::string& key, const std::string& found, const std::string& wanted) const;
  // The same, with the key and its value as found.
  [[noreturn]] void refuse(const std::string& key, const std::string& wanted) const;
  const std::string& file() const { return file_; }

 private:
  struct Root;  // the JSON value
  void read();
  [[noreturn]] void syntax_error(std::size_t bytes_read, const std::string& message) const;

  const std::string& text_;
  const std::string& file_;
  std::unique_ptr<Root> root_;
  std::map<std::string, std::size_t> offsets_;
  mutable std::set<std::string> asked_;  // outer keys
};

}  // namespace stepsim
