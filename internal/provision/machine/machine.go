// Package machine implements provision.Host on this machine, or on the root directory of one that
// is not running.
package machine

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// Machine is a host. Close it.
type Machine struct {
	root     string
	files    *files
	units    provision.Units
	packages *packages
	assets   provision.Assets
	prints   *provision.Fingerprints
}

// Assets makes the fetcher of assets for a file system; state is its directory there.
type Assets func(files provision.Files) provision.Assets

// Options of a Machine. Assets is required.
type Options struct {
	Assets Assets
	// PackageWait is how long to wait for a package manager that another process uses; zero for no
	// wait.
	PackageWait time.Duration
	// DigestFile is where KeepDigests keeps digests for the next run, a path of the machine.
	// Empty: nowhere.
	DigestFile string
}

// New returns this machine when root is "/", and else the machine whose root directory
// that is.
func New(root string, opts Options) (*Machine, error) {
	info, err := os.Stat(root)
	if err != nil {
		return nil, fmt.Errorf("cannot work on root directory %s: %w", root, err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("root %s is not a directory: %w", root, errs.Invalid)
	}
	m := &Machine{root: root, prints: provision.NewFingerprints()}
	m.files = newFiles(root, m.restoreLabel(), opts.DigestFile)
	m.packages = newPackages(m, opts.PackageWait)
	m.assets = opts.Assets(m.files)
	if m.Live() {
		m.units = &systemd{}
	} else {
		m.units = &links{files: m.files}
	}
	return m, nil
}

// Close ends the connection with systemd.
func (m *Machine) Close() error {
	if s, ok := m.units.(*systemd); ok {
		s.close()
	}
	return nil
}

// Live reports whether this is the running machine, not a root directory.
func (m *Machine) Live() bool { return m.root == "/" }

// Fingerprint is a short hash of a text, with a key of this run.
func (m *Machine) Fingerprint(text string) string { return m.prints.Of(text) }

// Files is the file system.
func (m *Machine) Files() provision.Files { return m.files }

// Units is systemd, or the links that enable units.
func (m *Machine) Units() provision.Units { return m.units }

// Packages is the package manager.
func (m *Machine) Packages() provision.Packages { return m.packages }

// Kernel is this machine's kernel.
func (m *Machine) Kernel() provision.Kernel { return kernel{m} }

// Accounts is the user database.
func (m *Machine) Accounts() provision.Accounts { return accounts{m} }

// Assets fetches.
func (m *Machine) Assets() provision.Assets { return m.assets }

// stderrLimit is how much of the end of a program's standard error an error carries, in bytes.
const stderrLimit = 2 << 10

// Run runs a program. When ctx is done, the program and its children get SIGTERM, and are killed
// later.
func (m *Machine) Run(ctx context.Context, c provision.Command) ([]byte, error) {
	if !m.Live() {
		return nil, fmt.Errorf("cannot run %s: the machine below %s does not run: %w", c.Args[0], m.root, errs.Unsupported)
	}
	return run(ctx, c)
}

// run runs a program of this machine.
func run(ctx context.Context, c provision.Command) ([]byte, error) {
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Env = append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C", "LC_ALL=C",
	}, c.Env...)
	cmd.Dir = "/"
	if c.Dir != "" {
		cmd.Dir = c.Dir
	}
	cmd.Stdin = c.Stdin
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil && cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // usually no process is left
	}
	if err != nil {
		words := strings.TrimSpace(stderr.String())
		if len(words) > stderrLimit {
			words = "…" + words[len(words)-stderrLimit:]
		}
		if words != "" {
			words = ": " + words
		}
		return stdout.Bytes(), fmt.Errorf("%s: %w%s", strings.Join(c.Args, " "), err, words)
	}
	return stdout.Bytes(), nil
}

// restoreLabel returns the function that sets a path's SELinux label from the policy, or nil
// without SELinux.
func (m *Machine) restoreLabel() func(path string) error {
	if !m.Live() {
		return nil
	}
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err != nil {
		return nil
	}
	program, err := exec.LookPath("restorecon")
	if err != nil {
		return nil
	}
	return func(path string) error {
		_, err := run(context.Background(), provision.Command{Args: []string{program, "-F", path}})
		return err
	}
}
