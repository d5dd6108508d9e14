package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// checksumFile lists the checksums of all files of a release.
const checksumFile = "SHA256SUMS"

// hooks are shell commands that sign. Neither runs if it is "".
type hooks struct {
	// signPackage runs before checksums are made, with a package as $1, which it may change.
	signPackage string
	// sign runs for each file and for the checksums: it writes a signature of $1 to $2.
	sign string
}

// checksums signs the packages of a directory and writes the checksums of all files.
func checksums(dir string, h hooks) error {
	names, err := published(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if suffix := filepath.Ext(name); h.signPackage != "" && (suffix == ".deb" || suffix == ".rpm" || suffix == ".apk") {
			if err := hook(h.signPackage, filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("SIGN_PACKAGE_COMMAND: %w", err)
			}
		}
	}
	var sums strings.Builder
	for _, name := range names {
		sum, err := sumOf(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%s  %s\n", sum, name)
	}
	if err := os.WriteFile(filepath.Join(dir, checksumFile), []byte(sums.String()), 0o644); err != nil {
		return err
	}
	if h.sign == "" {
		return nil
	}
	for _, name := range append(names, checksumFile) {
		file := filepath.Join(dir, name)
		if err := hook(h.sign, file, file+".sig"); err != nil {
			return fmt.Errorf("SIGN_COMMAND: %w", err)
		}
		if info, err := os.Stat(file + ".sig"); err != nil || info.Size() == 0 {
			return fmt.Errorf("SIGN_COMMAND has written no signature to %s.sig: it must write one of $1 to $2", file)
		}
	}
	return nil
}

// published lists the files of a release, sorted, and removes older signatures.
func published(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		switch name := entry.Name(); {
		case entry.IsDir() || name == checksumFile:
		case strings.HasSuffix(name, ".sig"):
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				return nil, err
			}
		default:
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no file of a release", dir)
	}
	return names, nil
}

func hook(command string, args ...string) error {
	cmd := exec.Command("sh", append([]string{"-ec", command, "sign"}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s for %s: %w", command, args[0], err)
	}
	return nil
}

func sumOf(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
