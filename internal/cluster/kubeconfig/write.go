package kubeconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"k8s.io/client-go/tools/clientcmd/api"
)

// write replaces a file atomically, so that no reader sees, and no crash leaves, half of it. A link
// stays a link, and owner and permissions stay; only the user can read a new file.
func write(file string, config *api.Config) error {
	text, err := Render(config)
	if err != nil {
		return err
	}
	if err := replace(file, text); err != nil {
		return fmt.Errorf("cannot write kubeconfig %s: %w", file, err)
	}
	return nil
}

func replace(file string, text []byte) error {
	file, err := target(file)
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // nothing, once it has the file's name
	err = fill(temp, file, text)
	if err = errors.Join(err, temp.Close()); err != nil {
		return err
	}
	err = os.Rename(temp.Name(), file)
	if errors.Is(err, syscall.EBUSY) {
		// The file is a mount of its own, as in a container: it cannot be replaced.
		return os.WriteFile(file, text, 0o600)
	}
	return err
}

// target is the file that a link leads to, also one that does not exist yet.
func target(file string) (string, error) {
	for range 40 { // as the kernel has it
		to, err := os.Readlink(file)
		if err != nil {
			return file, nil // no link; the write reports any other error
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(file), to)
		}
		file = to
	}
	return "", &fs.PathError{Op: "open", Path: file, Err: syscall.ELOOP}
}

// fill writes the text and makes temp's owner and permissions those of the file.
func fill(temp *os.File, file string, text []byte) error {
	info, err := os.Stat(file)
	if err == nil {
		if err := temp.Chmod(info.Mode().Perm()); err != nil {
			return err
		}
		// Only root can change the owner of a file, and only root sees files of others here.
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
			if err := temp.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
				return err
			}
		}
	}
	if _, err := temp.Write(text); err != nil {
		return err
	}
	return temp.Sync()
}
