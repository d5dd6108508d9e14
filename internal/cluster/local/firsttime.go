package local

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
)

// firstTime reports whether a warning is new to this user on this host, and records it. It is
// always new if it cannot be recorded.
func firstTime(what, machineID string) bool {
	cache, err := os.UserCacheDir()
	if err != nil {
		return true
	}
	// Homes may be shared by hosts.
	host, err := os.ReadFile(machineID)
	if err != nil {
		name, _ := os.Hostname() // all hosts without a name are one
		host = []byte(name)
	}
	dir := filepath.Join(cache, "berth", "told")
	if os.MkdirAll(dir, 0o700) != nil {
		return true
	}
	note, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("%s-%.8x", what, sha256.Sum256(host))), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return !os.IsExist(err)
	}
	_ = note.Close()
	return true
}
