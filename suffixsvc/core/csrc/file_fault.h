// Why something about a file failed: a value, not an exception; the binding turns it into the project's
// errors.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

namespace suffixsvc {

// `kind` is none where nothing failed.
struct FileFault {
    enum class Kind { none, invalid, corrupt, foreign, full, io, cancelled };
    Kind kind = Kind::none;
    std::string message;
    std::string expected;
    std::string got;

    explicit operator bool() const { return kind != Kind::none; }

    // What the system said of a file.
    static FileFault of_system(std::string message, int error) {
        const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
        return {full ? Kind::full : Kind::io, std::move(message), "", std::strerror(error)};
    }
};

}  // namespace suffixsvc
