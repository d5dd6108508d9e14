package logs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// unpack writes the directories and files of a node's archive below a directory, and nothing
// outside of it. It leaves out links, devices and all other types.
func unpack(dir string, from io.Reader) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	archive := tar.NewReader(from)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			// The padding after the end: the writer must not block on it.
			_, err := io.Copy(io.Discard, from)
			return err
		}
		if err != nil {
			return fmt.Errorf("cannot read the archive of the node: %w", err)
		}
		// A path that leaves the directory ends at the directory.
		name := strings.TrimPrefix(path.Clean("/"+header.Name), "/")
		switch {
		case name == "":
		case header.Typeflag == tar.TypeDir:
			err = root.MkdirAll(name, dirMode)
		case header.Typeflag == tar.TypeReg:
			err = unpackFile(root, name, archive)
		}
		if err != nil {
			return fmt.Errorf("cannot write %s of the node: %w", header.Name, err)
		}
	}
}

// unpackFile writes one file, which only the calling user may read, whatever its mode in the node.
func unpackFile(root *os.Root, name string, from io.Reader) error {
	if err := root.MkdirAll(path.Dir(name), dirMode); err != nil {
		return err
	}
	file, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, fileMode)
	if err != nil {
		return err
	}
	if err = file.Chmod(fileMode); err == nil {
		_, err = io.Copy(file, from)
	}
	return errors.Join(err, file.Close())
}
