package nodepage

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// tokenFile is in the daemon's state directory. It is root's alone.
const tokenFile = "page.token"

// tokenBytes make guesses hopeless.
const tokenBytes = 32

// MakeToken returns the token of the page, which is in a file of the directory. It makes one if there is none: an open
// page outlives a restart of the daemon, and a reboot ends it.
func MakeToken(dir string) (string, error) {
	token, err := ReadToken(dir)
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return token, err
	}
	random := make([]byte, tokenBytes)
	if _, err := rand.Read(random); err != nil {
		return "", fmt.Errorf("cannot make a token for the node page: %w", err)
	}
	token = hex.EncodeToString(random)
	// The file appears with its content: `berth page` may read it at any time.
	path := filepath.Join(dir, tokenFile)
	if err := os.WriteFile(path+".new", []byte(token+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("cannot keep the token of the node page: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return "", fmt.Errorf("cannot keep the token of the node page: %w", err)
	}
	return token, nil
}

// ReadToken returns the token that MakeToken made. The error wraps os.ErrNotExist if there is none.
func ReadToken(dir string) (string, error) {
	path := filepath.Join(dir, tokenFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("cannot read the token of the node page: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if decoded, err := hex.DecodeString(token); err != nil || len(decoded) != tokenBytes {
		return "", fmt.Errorf("%s is damaged: remove it and reload the daemon, which makes another one", path)
	}
	return token, nil
}
