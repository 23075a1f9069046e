// Files: a descriptor that is closed with its owner, a new file that is removed unless it is kept, and a
// buffered stream. Failures are thrown as FileFault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/files/file_fault.h"

namespace suffixsvc {

class File {
  public:
    // `name` is what faults call the file, such as "the run a.run".
    explicit File(std::string name) : name_(std::move(name)) {}
    File(File&& other) noexcept;
    File& operator=(File&&) = delete;
    ~File();

    // Opens the file, with close-on-exec; false if that fails, with errno set.
    bool open(const FilePath& path, int flags);
    int fd() const { return fd_; }
    const std::string& name() const { return name_; }
    std::uint64_t size() const;
    // Reads up to the end of the file; returns the number of bytes read.
    std::size_t read(std::uint64_t at, void* to, std::size_t bytes) const;
    void write(std::uint64_t at, const void* data, std::size_t bytes);
    void sync();
    // Closes the file, which the destructor does without reporting a failure.
    void close();
    // The fault "cannot <verb> <name>", from errno.
    FileFault failed(const char* verb) const;

  private:
    std::string name_;
    int fd_ = -1;
    std::uint64_t unsent_ = 0;  // bytes written whose writeback was not started yet
};

// A file that is created, and removed by the destructor unless keep() was called.
class NewFile : public File {
  public:
    // `flags`: O_EXCL or O_TRUNC.
    NewFile(const FilePath& path, int flags, std::string name);
    NewFile(NewFile&&) = delete;
    ~NewFile();
    void keep() { path_.clear(); }

  private:
    std::string path_;
};

// Writes a file sequentially through a buffer, from an offset on.
class FileStream {
  public:
    explicit FileStream(File& file, std::uint64_t offset = 0) : file_(file), offset_(offset) {
        buffer_.reserve(kBuffer);
    }
    void put(const void* data, std::size_t bytes) {
        if (buffer_.size() + bytes > kBuffer) flush();
        buffer_.resize(buffer_.size() + bytes);
        std::memcpy(buffer_.data() + buffer_.size() - bytes, data, bytes);
    }
    void flush();
    // Where the next data goes.
    std::uint64_t offset() const { return offset_ + buffer_.size(); }
    // crc32c of all data flushed.
    std::uint32_t crc() const { return crc_; }

  private:
    static constexpr std::size_t kBuffer = 1u << 18;

    File& file_;
    std::uint64_t offset_;
    std::uint32_t crc_ = 0;
    std::vector<std::uint8_t> buffer_;
};

}  // namespace suffixsvc
