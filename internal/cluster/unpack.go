package cluster

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// unpack writes the directories and files of an archive that a node made below a
// directory, where nothing of it can lead out. Links, devices and what else there may be
// are left out.
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
			// What pads the archive's end: nobody may be left writing it.
			_, err := io.Copy(io.Discard, from)
			return err
		}
		if err != nil {
			return fmt.Errorf("cannot read the archive of the node: %w", err)
		}
		// What climbs out ends at the directory.
		name := strings.TrimPrefix(path.Clean("/"+header.Name), "/")
		switch {
		case name == "":
		case header.Typeflag == tar.TypeDir:
			err = root.MkdirAll(name, logsDirMode)
		case header.Typeflag == tar.TypeReg:
			err = unpackFile(root, name, archive)
		}
		if err != nil {
			return fmt.Errorf("cannot write %s of the node: %w", header.Name, err)
		}
	}
}

// unpackFile writes one file, which whoever exports may read and nobody else, whoever wrote it in the
// node.
func unpackFile(root *os.Root, name string, from io.Reader) error {
	if err := root.MkdirAll(path.Dir(name), logsDirMode); err != nil {
		return err
	}
	file, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, logsFileMode)
	if err != nil {
		return err
	}
	if err = file.Chmod(logsFileMode); err == nil {
		_, err = io.Copy(file, from)
	}
	return errors.Join(err, file.Close())
}
