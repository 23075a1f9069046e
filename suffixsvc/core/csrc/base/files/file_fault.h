// The failure of a file operation, or an invalid argument; the binding turns it into the project's errors.
#pragma once

#include <cerrno>
#include <cstring>
#include <exception>
#include <string>

namespace suffixsvc {

struct FileFault : std::exception {
    // corrupt and foreign: of a segment; damaged: of a run
    enum class Kind { invalid, corrupt, foreign, damaged, full, io, cancelled, no_memory };

    FileFault(Kind its_kind, std::string its_message, std::string its_expected = "", std::string its_got = "")
        : kind(its_kind),
          message(std::move(its_message)),
          expected(std::move(its_expected)),
          got(std::move(its_got)) {}
    static FileFault invalid(std::string message, std::string expected = "", std::string got = "") {
        return {Kind::invalid, std::move(message), std::move(expected), std::move(got)};
    }
    // A fault from an errno value.
    static FileFault from_errno(std::string message, int error) {
        const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
        return {full ? Kind::full : Kind::io, std::move(message), "", std::strerror(error)};
    }
    const char* what() const noexcept override { return message.c_str(); }

    Kind kind;
    std::string message;
    std::string expected;
    std::string got;
};

// A path as a caller gave it: validated when it is used.
struct FilePath {
    FilePath(std::string path, bool is_utf8 = true) : text(std::move(path)), utf8(is_utf8) {}
    // The path for the system. Throws FileFault.
    const char* c_str() const {
        if (!utf8) throw FileFault::invalid("path must be UTF-8", "", text);
        if (text.find('\0') != text.npos)
            throw FileFault::invalid("path must not contain a zero byte", "", text.c_str());
        return text.c_str();
    }

    std::string text;
    bool utf8;  // if not, `text` shows it with escapes
};

}  // namespace suffixsvc
