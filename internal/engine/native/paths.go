package native

import "path/filepath"

// The places of all that the engine makes follow from the ids.

func (e *Engine) sandboxesDir() string { return filepath.Join(e.cfg.StateDir, "sandboxes") }

// sandboxPaths are the places of one sandbox in the state directory.
type sandboxPaths struct {
	dir string
	// netns is in the host's directory of network namespaces.
	netns               string
	user, ipc, uts, pid string
	shm                 string
	// volumes is volume.Sandbox.Dir.
	volumes string
	// filesDir is a link to the sandbox's directory on disk. ownCgroup is the record of a
	// cgroup parent that the engine made, placeholder that of the placeholder cgroup.
	filesDir, ownCgroup, placeholder string
	// labels is a file with the SELinux labels.
	labels string
}

func (e *Engine) sandboxPaths(id string) sandboxPaths {
	dir := filepath.Join(e.sandboxesDir(), id)
	return sandboxPaths{
		dir:         dir,
		netns:       filepath.Join(e.cfg.NetNSDir, e.netnsPrefix()+id),
		user:        filepath.Join(dir, "user"),
		volumes:     filepath.Join(dir, "volumes"),
		ipc:         filepath.Join(dir, "ipc"),
		uts:         filepath.Join(dir, "uts"),
		pid:         filepath.Join(dir, "pid"),
		shm:         filepath.Join(dir, "shm"),
		filesDir:    filepath.Join(dir, "files"),
		ownCgroup:   filepath.Join(dir, "own-cgroup"),
		placeholder: filepath.Join(dir, "mark"),
		labels:      filepath.Join(dir, labelsFile),
	}
}

func (e *Engine) netnsPrefix() string { return "berth-" + e.cfg.Instance + "-" }
