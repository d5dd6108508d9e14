package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/apisocket"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/keep"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// defaultInstance is the berth with the default directories.
const defaultInstance = "default"

// instanceOf names a berth among others on one host, by its state directory: bridges, tables, pins
// and cgroups carry the name.
func instanceOf(cfg *config.Daemon) string {
	if cfg.State == config.DefaultState {
		return defaultInstance
	}
	sum := sha256.Sum256([]byte(filepath.Clean(cfg.State)))
	return hex.EncodeToString(sum[:4])
}

// place is the directories of a daemon, with the tmpfs that was mounted for it.
type place struct {
	cfg *config.Daemon
	// lock keeps a second daemon away from the state directory.
	lock *sysfd.Lock
}

// lockName is the lock's file in the state directory.
const lockName = "daemon.lock"

// The parts' own directories, below root and below state.
const (
	podsDir       = "pods"
	imagesDir     = "images"
	networkDir    = "network"
	engineDir     = "engine"
	dockerDir     = "docker"
	supervisorDir = "supervisor"
	// handlersDir has the state that the programs of runtime handlers keep.
	handlersDir = "handlers"
	// restorerDir has the state that the OCI runtime for restored containers keeps.
	restorerDir = "restorer"
)

// preparePlace makes root and state. A reboot must clear state together with the processes that it
// describes, so it must be on a tmpfs: if it is not, preparePlace mounts one on it. The error is
// errs.Exists if another daemon uses the directories.
func preparePlace(cfg *config.Daemon, log *slog.Logger) (*place, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("cannot serve: berth makes namespaces and mounts and must run as root")
	}
	// The directories below are for root; a group that may use the socket can traverse this one.
	for _, dir := range []string{cfg.Root, cfg.State} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("cannot make a directory of berth: %w", err)
		}
		if err := os.Chmod(dir, 0o711); err != nil {
			return nil, fmt.Errorf("cannot protect a directory of berth: %w", err)
		}
	}
	if err := sysmount.EnsureTmpfs(cfg.State, stateMountSource(cfg)); err != nil {
		return nil, err
	}
	lock, holder, err := sysfd.TryLock(filepath.Join(cfg.State, lockName))
	if err != nil {
		return nil, fmt.Errorf("cannot take the state directory: %w", err)
	}
	if lock == nil {
		return nil, fmt.Errorf("cannot serve: the state directory %s is in use by process %d: %w", cfg.State, holder, errs.Exists)
	}
	p := &place{cfg: cfg, lock: lock}
	if err := makeDirs(cfg); err != nil {
		return nil, errors.Join(err, p.release(log))
	}
	return p, nil
}

// makeDirs makes the parts' own directories.
func makeDirs(cfg *config.Daemon) error {
	for _, dir := range []string{
		filepath.Join(cfg.Root, podsDir), filepath.Join(cfg.Root, imagesDir), filepath.Join(cfg.Root, networkDir),
		filepath.Join(cfg.State, podsDir), filepath.Join(cfg.State, imagesDir), filepath.Join(cfg.State, networkDir),
		filepath.Join(cfg.State, engineDir), filepath.Join(cfg.State, supervisorDir),
		filepath.Join(cfg.Root, dockerDir), filepath.Join(cfg.State, dockerDir),
	} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("cannot make a directory of berth: %w", err)
		}
	}
	return nil
}

func stateMountSource(cfg *config.Daemon) string { return "berth-" + instanceOf(cfg) }

// release releases the lock. It unmounts the tmpfs of the state directory if there is no keeper,
// and so no container. Otherwise it leaves everything for the next start.
func (p *place) release(log *slog.Logger) error {
	if err := p.lock.Close(); err != nil {
		return fmt.Errorf("cannot release the state directory: %w", err)
	}
	ours, err := sysmount.MountedFrom(p.cfg.State, stateMountSource(p.cfg))
	if err != nil || !ours {
		return err
	}
	// The records of pods stay, so there is no keeper to wait for.
	if left, err := os.ReadDir(filepath.Join(p.cfg.State, podsDir, "sandboxes")); err == nil && len(left) > 0 {
		return nil
	}
	deadline := time.Now().Add(stopTimeout / 2)
	lived, err := p.awaitNoKeeper(deadline)
	if lived || err != nil {
		return err
	}
	// The engine has mounted it on itself. No pod is left that has a namespace in it.
	if netns := Resolved(p.cfg.Network.NetNSDir); isBelow(netns, Resolved(p.cfg.State)) {
		if err := sysmount.Unmount(netns); err != nil {
			return fmt.Errorf("cannot unmount the directory of network namespaces, which is in the state directory: %w", err)
		}
	}
	// The keeper releases its lock a moment before it removes its other files.
	for {
		err := sysmount.Unmount(p.cfg.State)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("cannot unmount the state directory: %w", err)
		}
		time.Sleep(keeperPoll)
	}
	log.Info("nothing lives in the state directory; unmounted it", "state", p.cfg.State)
	return nil
}

// isBelow reports whether one path is below another one. Both are clean.
func isBelow(path, dir string) bool { return strings.HasPrefix(path, dir+"/") }

// keeperPoll is the time between two checks for the end of a keeper: there is no event for the lock
// of another process.
const keeperPoll = 20 * time.Millisecond

// awaitNoKeeper waits until there is no keeper; lived is true if there still is one
// at the deadline: it has containers, or it does not end for another reason.
func (p *place) awaitNoKeeper(deadline time.Time) (lived bool, err error) {
	lock := filepath.Join(p.cfg.State, supervisorDir, keep.LockName)
	for {
		holder, err := sysfd.LockHolder(lock)
		if err != nil || holder == 0 {
			return false, err
		}
		if time.Now().After(deadline) {
			return true, nil
		}
		time.Sleep(keeperPoll)
	}
}

// listen creates the CRI socket.
func listen(ctx context.Context, cfg *config.Daemon) (*apisocket.Listener, error) {
	gid, err := lookupGroup(cfg.Group)
	if err != nil {
		return nil, err
	}
	path := cfg.SocketPath()
	listener, err := apisocket.Listen(ctx, apisocket.Options{Path: path, GID: gid, OwnDir: filepath.Dir(path) == cfg.State})
	if err != nil {
		return nil, err
	}
	return listener, nil
}

func lookupGroup(name string) (gid int, err error) {
	if name == "" {
		return 0, nil
	}
	if gid, err := strconv.Atoi(name); err == nil && gid >= 0 {
		return gid, nil
	}
	group, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("configuration key group: %q is not a group of this host: %w", name, errs.Invalid)
	}
	return strconv.Atoi(group.Gid)
}
