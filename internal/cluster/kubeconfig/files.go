package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/berthrun/berth/internal/errs"
)

// Files are the kubeconfig files of a user, in the order in which kubectl reads them.
type Files []string

// Locate finds the files as kubectl does: the explicit one (--kubeconfig), else those of
// KUBECONFIG, else ~/.kube/config.
func Locate(explicit string, env func(string) string) (Files, error) {
	if explicit != "" {
		return Files{explicit}, nil
	}
	var files Files
	for _, file := range filepath.SplitList(env("KUBECONFIG")) {
		if file != "" && !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	if len(files) > 0 {
		return files, nil
	}
	home := env("HOME")
	if home == "" {
		// As in a unit of systemd.
		me, err := user.Current()
		if err != nil || me.HomeDir == "" {
			return nil, fmt.Errorf("cannot find the kubeconfig: neither KUBECONFIG nor HOME is set; give --kubeconfig: %w", errs.Invalid)
		}
		home = me.HomeDir
	}
	return Files{filepath.Join(home, ".kube", "config")}, nil
}

// defaultFile is the file for new entries: the first that exists, else the last, as for kubectl.
func (f Files) defaultFile() string {
	for _, file := range f {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	return f[len(f)-1]
}

// Merge puts the one cluster of a config (FromAdmin's) into the files and makes it the current
// context. It goes to the file that has its name already, else to the default file, and is in no
// other afterwards. It returns the file.
func (f Files) Merge(ctx context.Context, config *api.Config) (string, error) {
	name, defaultFile := config.CurrentContext, f.defaultFile()
	target := defaultFile
	err := f.change(ctx, name, defaultFile, func(contents map[string]*api.Config) {
		for _, file := range f {
			if c := contents[file]; c != nil && (c.Clusters[name] != nil || c.AuthInfos[name] != nil || c.Contexts[name] != nil) {
				target = file
				break
			}
		}
		for _, c := range contents {
			drop(c, name)
		}
		contents[target].Clusters[name] = config.Clusters[name]
		contents[target].AuthInfos[name] = config.AuthInfos[name]
		contents[target].Contexts[name] = config.Contexts[name]
		// The first file with a current context wins.
		contents[defaultFile].CurrentContext = name
	})
	if err != nil {
		return "", fmt.Errorf("cannot add context %s to the kubeconfig: %w", name, err)
	}
	return target, nil
}

// Update changes the server, the certificates and the key in the entries of the one cluster of a config (FromAdmin's), where
// files have such entries. It adds no entry, keeps the current context, and does not touch files that are up to date. An
// entry with the server internal, which is for clients on the network of the nodes, keeps it.
func (f Files) Update(ctx context.Context, config *api.Config, internal string) error {
	name, stale := config.CurrentContext, false
	for _, file := range f {
		c, err := read(file)
		if err != nil {
			return err
		}
		stale = update(c, name, config, internal) || stale
	}
	if !stale {
		return nil
	}
	err := f.change(ctx, name, "", func(contents map[string]*api.Config) {
		for _, c := range contents {
			update(c, name, config, internal)
		}
	})
	if err != nil {
		return fmt.Errorf("cannot update context %s in the kubeconfig: %w", name, err)
	}
	return nil
}

// Check reports in advance that Merge would fail: files that cannot be read or written, or a lock
// that another process keeps. It creates nothing.
func (f Files) Check(ctx context.Context) error {
	for _, file := range f {
		if _, err := read(file); err != nil {
			return err
		}
	}
	defaultFile := f.defaultFile()
	dir := filepath.Dir(defaultFile)
	if _, err := os.Stat(dir); err == nil {
		unlock, err := lockAll(ctx, []string{defaultFile})
		if err != nil {
			return err
		}
		return unlock()
	}
	for {
		info, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir):
			dir = filepath.Dir(dir)
			continue
		case err == nil && !info.IsDir():
			err = syscall.ENOTDIR
		case err == nil:
			err = unix.Access(dir, unix.W_OK|unix.X_OK)
		}
		if err != nil {
			return fmt.Errorf("cannot make the directory of kubeconfig %s in %s: %w", defaultFile, dir, err)
		}
		return nil
	}
}

// Remove removes the name from all files, and unsets a current context of that name. It does not
// touch files without the name.
func (f Files) Remove(ctx context.Context, name string) error {
	err := f.change(ctx, name, "", func(contents map[string]*api.Config) {
		for _, c := range contents {
			drop(c, name)
		}
	})
	if err != nil {
		return fmt.Errorf("cannot remove context %s from the kubeconfig: %w", name, err)
	}
	return nil
}

// Find returns the cluster of the context of that name, nil if no file has it. The first file wins,
// as for kubectl.
func (f Files) Find(name string) (*api.Cluster, error) {
	for _, file := range f {
		config, err := read(file)
		if err != nil {
			return nil, err
		}
		if context := config.Contexts[name]; context != nil && config.Clusters[context.Cluster] != nil {
			return config.Clusters[context.Cluster], nil
		}
	}
	return nil, nil
}

// Ours reports whether the files have a context of that name that Merge wrote.
func (f Files) Ours(name string) (bool, error) {
	for _, file := range f {
		config, err := read(file)
		if err != nil {
			return false, err
		}
		if context := config.Contexts[name]; context != nil && context.Extensions[extension] != nil {
			return true, nil
		}
	}
	return false, nil
}

// change edits the files that have entries of a name, and the file always ("" for none), under
// their locks. Other files need not be writable.
func (f Files) change(ctx context.Context, name, always string, edit func(map[string]*api.Config)) error {
	for {
		affected, err := f.affected(name, always)
		if err != nil || len(affected) == 0 {
			return err
		}
		again, err := f.changeLocked(ctx, name, always, affected, edit)
		if err != nil || !again {
			return err
		}
	}
}

// changeLocked edits the affected files. again: before the locks were taken, other files became
// affected.
func (f Files) changeLocked(ctx context.Context, name, always string, affected []string, edit func(map[string]*api.Config)) (again bool, err error) {
	unlock, err := lockAll(ctx, affected)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	now, err := f.affected(name, always)
	if err != nil {
		return false, err
	}
	for _, file := range now {
		if !slices.Contains(affected, file) {
			return true, nil
		}
	}
	contents := map[string]*api.Config{}
	for _, file := range affected {
		if contents[file], err = read(file); err != nil {
			return false, err
		}
	}
	edit(contents)
	for _, file := range affected {
		if err := write(file, contents[file]); err != nil {
			return false, err
		}
	}
	return false, nil
}

// affected are the files that have entries of a name, and the file always.
func (f Files) affected(name, always string) ([]string, error) {
	var files []string
	for _, file := range f {
		config, err := read(file)
		if err != nil {
			return nil, err
		}
		if file == always || holds(config, name) {
			files = append(files, file)
		}
	}
	return files, nil
}

// read returns the content of a file; a file that does not exist is empty.
func read(file string) (*api.Config, error) {
	config, err := clientcmd.LoadFromFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return api.NewConfig(), nil
	case err != nil:
		return nil, fmt.Errorf("cannot read kubeconfig %s: %w", file, err)
	}
	return config, nil
}
