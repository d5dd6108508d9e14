package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// manager has the commands of one package manager. NAMES in a command stands for the packages.
type manager struct {
	name string
	// program reports whether the manager is there.
	program string
	// installed prints "name version" a line for those of NAMES that are installed, apt's with
	// "status/" before it for all that it knows of.
	installed []string
	// plan prints what would be installed; planned takes name and version out of a line. declined
	// matches the output of a plan that ends as if the user had declined; nil for none.
	plan     []string
	planned  *regexp.Regexp
	declined *regexp.Regexp
	// refresh fetches lists of packages.
	refresh []string
	install []string
	// noRemove is what makes install refuse to remove packages; nil for managers that remove a package only on request.
	noRemove []string
	// unfit matches the output of an install that does not fit the packages that stay. why matches lines of its standard output
	// that say why; nil for managers that write them to standard error.
	unfit, why *regexp.Regexp
	// pin joins a name and a version.
	pin string
	// repair finishes what was interrupted; nil for managers that need none.
	repair []string
	// remove fails if packages that stay need NAMES; needed matches its output then. tryRemove
	// checks this without a change; nil if remove itself changes nothing when it fails.
	tryRemove []string
	remove    []string
	needed    *regexp.Regexp
	// settle finishes what an earlier install deferred; nil for managers that need none.
	settle []string
	// unknown matches the output of an install that does not know a package.
	unknown *regexp.Regexp
	// informs are statuses of the manager's own program that stand for success, with a remark.
	informs []int
	// locks are the files that the manager locks.
	locks []string
	// busy matches the output of a command that found the lock held.
	busy *regexp.Regexp
}

const namesWord = "NAMES"

func managers() []manager {
	rpmInstalled := []string{"rpm", "-q", "--qf", "%{NAME} %|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}\n", namesWord}
	rpmRemove := []string{"rpm", "-e", namesWord}
	rpmNeeded := regexp.MustCompile(`(?i)is needed by|failed dependencies`)
	return []manager{
		{
			name: "apt", program: "apt-get",
			installed: []string{"dpkg-query", "-W", "-f", "${db:Status-Status}/${Package} ${Version}\n", namesWord},
			plan:      []string{"apt-get", "install", "-s", "-q", "--no-install-recommends", "--allow-downgrades", namesWord},
			planned:   regexp.MustCompile(`(?m)^Inst (\S+) (?:\[[^\]]*\] )?\((\S+)`),
			refresh:   []string{"apt-get", "update", "-q"},
			install: []string{
				"apt-get", "install", "-y", "-q", "--no-install-recommends", "--allow-downgrades",
				"-o", "Dpkg::Options::=--force-confold", "-o", "DPkg::Lock::Timeout=60",
				"-o", "Dpkg::Use-Pty=0", // keeps dpkg's complaints out of the plan
				namesWord,
			},
			noRemove: []string{"--no-remove"},
			unfit:    regexp.MustCompile(`remove is disabled|you have held broken packages|Unable to satisfy dependencies`),
			why:      regexp.MustCompile(`(?m)^ \S+ : \S+: .*$`),
			pin:      "=", repair: []string{"dpkg", "--configure", "-a", "--force-confold"},
			// Without it, apt refuses a package that was left half unpacked.
			tryRemove: []string{"dpkg", "--no-act", "--force-remove-reinstreq", "--purge", namesWord},
			remove:    []string{"dpkg", "--force-remove-reinstreq", "--purge", namesWord}, needed: regexp.MustCompile(`dependency problems|depends on`),
			settle:  []string{"dpkg", "--triggers-only", "-a"},
			unknown: regexp.MustCompile(`Unable to locate|has no installation candidate|was not found|404 +Not Found`),
			locks:   []string{"/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/cache/apt/archives/lock"},
			busy:    regexp.MustCompile(`Could not get lock|is locked by another|lock-frontend`),
		},
		{
			name: "dnf", program: "dnf", installed: rpmInstalled, refresh: []string{"dnf", "makecache", "-q"},
			// From the cached lists: a plan does not wait for servers. Long names have the rest of
			// their line below them.
			plan:     []string{"dnf", "-C", "install", "--assumeno", "--setopt=install_weak_deps=False", namesWord},
			planned:  regexp.MustCompile(`(?m)^ (\S+)\s+(?:noarch|x86_64|i686|aarch64|ppc64le|riscv64|s390x)\s+(\S+)\s`),
			declined: regexp.MustCompile(`Operation aborted`),
			install:  []string{"dnf", "install", "-y", "-q", "--setopt=install_weak_deps=False", namesWord}, pin: "-",
			remove: rpmRemove, needed: rpmNeeded, unknown: regexp.MustCompile(`No match for argument|Unable to find a match`),
			unfit: regexp.MustCompile(`(?m)^ *Problem(?: \d+)?: `),
			locks: []string{"/var/lib/rpm/.rpm.lock", "/usr/lib/sysimage/rpm/.rpm.lock"}, busy: regexp.MustCompile(`(?i)waiting for process|transaction lock|\.rpm\.lock`),
		},
		{
			name: "yum", program: "yum", installed: rpmInstalled, refresh: []string{"yum", "makecache", "-q"},
			install: []string{"yum", "install", "-y", "-q", namesWord}, pin: "-",
			remove: rpmRemove, needed: rpmNeeded, unknown: regexp.MustCompile(`No package .* available`),
			unfit: regexp.MustCompile(`You could try using --skip-broken`),
			locks: []string{"/var/lib/rpm/.rpm.lock"}, busy: regexp.MustCompile(`(?i)another app is currently holding|transaction lock|\.rpm\.lock`),
		},
		{
			name: "zypper", program: "zypper", installed: rpmInstalled, refresh: []string{"zypper", "-n", "refresh"},
			plan:    []string{"zypper", "-n", "--no-refresh", "--xmlout", "install", "--dry-run", "--no-recommends", "--oldpackage", namesWord},
			planned: regexp.MustCompile(`<solvable type="package" name="([^"]+)" edition="([^"]+)"`),
			install: []string{"zypper", "-n", "install", "--no-recommends", "--oldpackage", namesWord}, pin: "=",
			remove: rpmRemove, needed: rpmNeeded, unfit: regexp.MustCompile(`Problem: `), why: regexp.MustCompile(`(?m)^Problem: .*$`),
			// 104 is zypper's exit code for it; --xmlout does not write the message to standard
			// error.
			unknown: regexp.MustCompile(`No provider of|not found in package names|exit status 104`),
			// A reboot or another run of zypper is due, a repository was skipped, a script of a package failed
			// (zypper(8)).
			informs: []int{102, 103, 106, 107},
			locks:   []string{"/run/zypp.pid"}, busy: regexp.MustCompile(`System management is locked`),
		},
	}
}

// aptCache is the room that apt may need for what it keeps of its lists. With less space apt runs
// without these files: when the disk is full it leaves parts of them behind, even when it only
// reads.
const aptCache = 256 << 20

// lockPause is the time between two checks of a lock.
const lockPause = time.Second

// packages is the package manager of a machine.
type packages struct {
	machine *Machine
	manager *manager // nil for none
	// wait is how long to wait for another process's lock.
	wait time.Duration
	mu   sync.Mutex
}

func newPackages(m *Machine, wait time.Duration) *packages {
	p := &packages{machine: m, wait: wait}
	for _, candidate := range managers() {
		if m.has(candidate.program) {
			p.manager = &candidate
			break
		}
	}
	return p
}

// has reports whether the machine has a program.
func (m *Machine) has(program string) bool {
	if m.Live() {
		_, err := exec.LookPath(program)
		return err == nil
	}
	for _, dir := range []string{"/usr/bin", "/usr/sbin", "/bin", "/sbin"} {
		if _, err := m.files.Stat(dir + "/" + program); err == nil {
			return true
		}
	}
	return false
}

// Manager names the manager.
func (p *packages) Manager() string {
	if p.manager == nil {
		return ""
	}
	return p.manager.name
}

// run runs a command of the manager with names, in the machine's root.
func (p *packages) run(ctx context.Context, command, names []string) ([]byte, error) {
	if p.manager == nil {
		return nil, fmt.Errorf("the machine has no package manager that is known here: %w", errs.Unsupported)
	}
	var args []string
	if !p.machine.Live() {
		args = append(args, "chroot", p.machine.root)
	}
	for i, word := range command {
		if word == namesWord {
			args = append(args, names...)
		} else {
			args = append(args, word)
		}
		if i == 0 && word == "apt-get" && p.machine.files.Room("/var/cache/apt") < aptCache {
			args = append(args, "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=")
		}
	}
	out, err := run(ctx, provision.Command{Args: args, Env: []string{"DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=1"}})
	var exit *exec.ExitError
	if command[0] == p.manager.program && errors.As(err, &exit) && slices.Contains(p.manager.informs, exit.ExitCode()) {
		return out, nil
	}
	if err != nil && p.manager.why != nil {
		for _, reason := range p.manager.why.FindAll(out, -1) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(reason))
		}
	}
	return out, err
}

// known queries the manager about names, a line for each.
func (p *packages) known(ctx context.Context, names []string) (string, error) {
	if len(names) == 0 {
		return "", nil
	}
	out, err := p.run(ctx, p.manager.orEmpty().installed, names)
	if err != nil && (errors.Is(err, errs.Unsupported) || ctx.Err() != nil) {
		return "", err
	}
	// It complains about unknown names, and answers for the others.
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", err
	}
	return string(out), nil
}

// Half queries apt; other managers install all or nothing.
func (p *packages) Half(ctx context.Context, names []string) ([]string, error) {
	if p.Manager() != "apt" {
		return nil, nil
	}
	out, err := p.known(ctx, names)
	var list []string
	for line := range strings.Lines(out) {
		status, rest, _ := strings.Cut(line, "/")
		name, _, _ := strings.Cut(rest, " ")
		if !slices.Contains([]string{"installed", "not-installed", "config-files"}, status) && slices.Contains(names, name) {
			list = append(list, name)
		}
	}
	return list, err
}

// Installed queries versions.
func (p *packages) Installed(ctx context.Context, names []string) (map[string]string, error) {
	list := map[string]string{}
	out, err := p.known(ctx, names)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		if p.manager.name == "apt" {
			var ok bool
			if line, ok = strings.CutPrefix(line, "installed/"); !ok {
				continue
			}
		}
		name, version, ok := p.manager.installedLine(line, names)
		if ok {
			list[name] = version
		}
	}
	return list, nil
}

func (m *manager) orEmpty() *manager {
	if m == nil {
		return &manager{}
	}
	return m
}

// installedLine takes name and version out of a line.
func (m *manager) installedLine(line string, names []string) (name, version string, ok bool) {
	words := strings.Fields(line)
	if len(words) != 2 {
		return "", "", false
	}
	return words[0], words[1], slices.Contains(names, words[0])
}

// Plan queries the manager about what an install would do, if it can say.
func (p *packages) Plan(ctx context.Context, wanted []provision.PackageVersion) ([]provision.PackageVersion, error) {
	if p.manager.orEmpty().planned == nil {
		return wanted, nil
	}
	out, err := p.run(ctx, p.manager.plan, p.pinned(wanted))
	if err != nil && (p.manager.declined == nil || !p.manager.declined.MatchString(err.Error())) {
		if p.manager.unknown.MatchString(err.Error()) {
			return nil, fmt.Errorf("%w: %w", errs.Unavailable, err)
		}
		return nil, err
	}
	var list []provision.PackageVersion
	for _, match := range p.manager.planned.FindAllStringSubmatch(string(out), -1) {
		list = append(list, provision.PackageVersion{Name: match[1], Version: match[2]})
	}
	return list, nil
}

func (p *packages) pinned(wanted []provision.PackageVersion) []string {
	names := make([]string, len(wanted))
	for i, w := range wanted {
		names[i] = w.Name
		if w.Version != "" {
			names[i] += p.manager.pin + w.Version
		}
	}
	return names
}

// Install installs; lists that do not know a package are fetched once more, and what
// an install before left half done is finished first.
func (p *packages) Install(ctx context.Context, wanted []provision.PackageVersion, hold []string) error {
	return p.install(ctx, p.manager.orEmpty().install, wanted, hold)
}

// Revert is an install that removes nothing.
func (p *packages) Revert(ctx context.Context, list []provision.PackageVersion) error {
	m := p.manager.orEmpty()
	err := p.install(ctx, slices.Concat(m.install, m.noRemove), list, nil)
	switch {
	case err == nil || p.manager == nil || errors.Is(err, errs.Unavailable):
		return err
	case m.unknown.MatchString(err.Error()):
		return fmt.Errorf("%s: in no list any more: %w: %w: %w", versions(list), errs.State, errs.NotFound, err)
	case m.unfit.MatchString(err.Error()):
		return fmt.Errorf("%s: does not fit what is installed: %w: %w", versions(list), errs.State, err)
	}
	return err
}

// versions names packages with their versions, for errors.
func versions(list []provision.PackageVersion) string {
	var all []string
	for _, pkg := range list {
		all = append(all, "version "+pkg.Version+" of package "+pkg.Name)
	}
	return strings.Join(all, ", ")
}

func (p *packages) install(ctx context.Context, command []string, wanted []provision.PackageVersion, hold []string) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.waitLock(ctx); err != nil {
		return err
	}
	release, err := p.holdUnits(ctx, hold)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if p.manager != nil && p.manager.repair != nil {
		if _, err := p.run(ctx, p.manager.repair, nil); err != nil {
			return p.failed("finish what was interrupted", err)
		}
	}
	names := p.pinned(wanted)
	_, err = p.run(ctx, command, names)
	if err != nil && p.manager != nil && p.manager.unknown.MatchString(err.Error()) {
		if err := p.fetchLists(ctx); err != nil {
			return err
		}
		_, err = p.run(ctx, command, names)
	}
	return p.failed("install "+strings.Join(names, " "), err)
}

// Refresh fetches lists of packages.
func (p *packages) Refresh(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.manager == nil {
		return nil
	}
	if err := p.waitLock(ctx); err != nil {
		return err
	}
	return p.fetchLists(ctx)
}

func (p *packages) fetchLists(ctx context.Context) error {
	provision.Note(ctx, "fetching lists of packages")
	if _, err := p.run(ctx, p.manager.refresh, nil); err != nil {
		return fmt.Errorf("cannot fetch lists of packages: %w: %w", errs.Unavailable, err)
	}
	return nil
}

// failed gives an error of the manager its kind. A held lock is retried.
func (p *packages) failed(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case p.manager != nil && p.manager.busy.MatchString(err.Error()):
		return fmt.Errorf("cannot %s: %w: %w", what, errs.Unavailable, err)
	}
	return fmt.Errorf("cannot %s: %w", what, err)
}

// Remove removes packages that nothing else needs.
func (p *packages) Remove(ctx context.Context, names []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.waitLock(ctx); err != nil {
		return err
	}
	half, err := p.Half(ctx, names)
	if err != nil {
		return err
	}
	if p.manager.orEmpty().tryRemove != nil {
		_, err = p.run(ctx, p.manager.tryRemove, names)
	}
	if err == nil {
		_, err = p.run(ctx, p.manager.orEmpty().remove, names)
	}
	if err != nil && p.manager != nil && p.manager.needed.MatchString(err.Error()) {
		return fmt.Errorf("package %s stays, others need it: %w: %w", strings.Join(names, " "), errs.State, err)
	}
	if err == nil && len(half) > 0 {
		_, err = p.run(ctx, p.manager.settle, nil)
	}
	return p.failed("remove "+strings.Join(names, " "), err)
}

// waitLock waits until no process holds the manager's lock, and reports the holder.
func (p *packages) waitLock(ctx context.Context) error {
	if p.manager == nil || !p.machine.Live() {
		return nil
	}
	deadline := time.Now().Add(p.wait)
	reported := ""
	for {
		holder, path, err := p.lockHolder()
		if err != nil || holder == 0 {
			return err
		}
		who := fmt.Sprintf("%s is locked by %s", path, processName(holder))
		if who != reported {
			provision.Note(ctx, "waiting: %s", who)
			reported = who
		}
		if time.Now().After(deadline) {
			// An error of another kind would be retried.
			return fmt.Errorf("%s for more than %s: %w", who, p.wait, errs.State)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", who, ctx.Err())
		case <-time.After(lockPause):
		}
	}
}

func (p *packages) lockHolder() (pid int, path string, err error) {
	for _, path := range p.manager.locks {
		at, done, err := p.machine.files.at(path)
		if errors.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return 0, "", err
		}
		defer done()
		if strings.HasSuffix(at, ".pid") {
			continue // not a lock: the manager itself names the holder
		}
		pid, err := sysfd.LockHolder(at)
		if err != nil || pid != 0 {
			return pid, path, err
		}
	}
	return 0, "", nil
}

// processName is a process's name for messages.
func processName(pid int) string {
	if pid < 0 {
		return "a process of another pid namespace"
	}
	data, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "cmdline"))
	words := strings.Join(strings.Split(strings.TrimRight(string(data), "\x00"), "\x00"), " ")
	if err != nil || words == "" {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, words)
}
