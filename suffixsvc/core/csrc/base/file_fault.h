// The failure of a file operation as a value, not an exception; the binding turns it into the
// project's errors.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

namespace suffixsvc {

// Kind::none means success.
struct FileFault {
    enum class Kind { none, invalid, corrupt, foreign, full, io, cancelled };
    Kind kind = Kind::none;
    std::string message;
    std::string expected;
    std::string got;

    explicit operator bool() const { return kind != Kind::none; }

    // A fault from an errno value.
    static FileFault from_errno(std::string message, int error) {
        const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
        return {full ? Kind::full : Kind::io, std::move(message), "", std::strerror(error)};
    }
};

}  // namespace suffixsvc
