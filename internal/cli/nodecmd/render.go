package nodecmd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/node"
	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/render"
)

// rendering is one run of render.
type rendering struct {
	target, output      string
	distribution, arch  string
	runtimeVersion      string
	nvidiaCTK           string
	nodePath            string
	berth, supervisor   render.Fetched
	allowSecrets        bool
	selinux, selinuxSet bool
}

// newRender says what a node file becomes without a machine.
func newRender() *cobra.Command {
	r := rendering{}
	cmd := &cobra.Command{
		Use:   "render [FILE]",
		Short: "Write a node file as cloud-init user data, Ignition, a tree of files or a script",
		Long: "render touches no machine: flags say what kind of machine it is for. What the form cannot say is told on\n" +
			"standard error, each by name with the reason.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.selinuxSet = cmd.Flags().Changed("selinux")
			return r.run(cmd, append(args, DefaultFile)[0])
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&r.target, "target", "", "cloud-init, ignition, dir or script")
	flags.StringVarP(&r.output, "output", "o", "-", "file to write, for its owner only, or directory to make; - is standard output")
	flags.StringVar(&r.distribution, "distribution", "", "distribution and version of the machine: debian:12, flatcar, …")
	flags.StringVar(&r.arch, "arch", runtime.GOARCH, "architecture of the machine")
	flags.StringVar(&r.runtimeVersion, "runtime-version", "", "version of the runtime that the machine brings")
	flags.BoolVar(&r.selinux, "selinux", false, "whether the machine runs SELinux; default: as the distribution does")
	flags.StringVar(&r.nvidiaCTK, "nvidia-ctk", "", "path of nvidia-ctk on the machine; empty: none")
	flags.StringVar(&r.nodePath, "node-file", DefaultFile, "where the node file goes on the machine; empty leaves it out")
	flags.StringVar(&r.berth.Source, "berth", "", "URL from which the machine fetches berth; empty: it has it")
	flags.StringVar(&r.berth.Digest, "berth-digest", "", "digest of that: sha256:…")
	flags.StringVar(&r.supervisor.Source, "supervisor", "", "URL from which the machine fetches berth-supervisor; empty: it has it")
	flags.StringVar(&r.supervisor.Digest, "supervisor-digest", "", "digest of that: sha256:…")
	flags.BoolVar(&r.allowSecrets, "allow-secrets", false, "write credentials to what others may read: user data, standard output")
	return cmd
}

// targets are the forms by name.
func targets() map[string]func(render.Input) (render.Output, error) {
	return map[string]func(render.Input) (render.Output, error){
		"cloud-init": render.CloudInit, "ignition": render.Ignition, "dir": render.Dir, "script": render.Script,
	}
}

func (r *rendering) run(cmd *cobra.Command, file string) error {
	write, ok := targets()[r.target]
	if !ok {
		return fmt.Errorf("--target %q: want cloud-init, ignition, dir or script: %w", r.target, errs.Invalid)
	}
	if r.target == "dir" && r.output == "-" {
		return fmt.Errorf("--target dir writes a directory; name it by --output: %w", errs.Invalid)
	}
	n, text, err := load(cmd.Context(), file, "", cmd.InOrStdin())
	if err != nil {
		return err
	}
	facts, programs, err := r.facts(n)
	if err != nil {
		return nodefile.Locate(err, shownFile(file), text)
	}
	target, err := node.Build(n, facts)
	if err != nil {
		return nodefile.Locate(err, shownFile(file), text)
	}
	if !facts.Distro.Tested {
		fmt.Fprintf(cmd.ErrOrStderr(), "note: berth's table has no %s; it is taken for the nearest release\n", facts.Distro.Name)
	}
	out, err := write(render.Input{
		Target: target, Distro: facts.Distro, Arch: facts.Arch, Node: text, NodePath: r.nodePath,
		Programs: programs, Berth: r.berth, Credentials: facts.Credentials,
	})
	if err != nil {
		return fmt.Errorf("cannot render %s as %s: %w", shownFile(file), r.target, err)
	}
	if err := r.guard(out.Secrets); err != nil {
		return err
	}
	for _, left := range out.Left {
		fmt.Fprintf(cmd.ErrOrStderr(), "not in it: %s: %s\n", left.What, left.Reason)
	}
	return r.write(cmd.OutOrStdout(), out)
}

// facts makes facts of flags.
func (r *rendering) facts(n *nodefile.Node) (facts.Facts, []string, error) {
	id, version, _ := strings.Cut(r.distribution, ":")
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*(:[A-Za-z0-9._-]+)?$`).MatchString(r.distribution) {
		return facts.Facts{}, nil, fmt.Errorf("--distribution %q: want one such as debian:12 or flatcar: %w", r.distribution, errs.Invalid)
	}
	d, err := distro.Release(id + " " + version)
	if err != nil {
		return facts.Facts{}, nil, fmt.Errorf("--distribution %s: %w", r.distribution, err)
	}
	if r.selinuxSet {
		d.SELinux = r.selinux
	}
	s := facts.Assumptions{Distro: d, Arch: r.arch, NvidiaCTK: r.nvidiaCTK, File: r.nodePath, Read: os.ReadFile}
	if !slices.Contains([]string{"amd64", "arm64", "arm", "386", "ppc64le", "s390x", "riscv64", "loong64"}, r.arch) {
		return facts.Facts{}, nil, fmt.Errorf("--arch %q: want amd64, arm64, …: %w", r.arch, errs.Invalid)
	}
	if r.nodePath != "" && (!path.IsAbs(r.nodePath) || path.Clean(r.nodePath) != r.nodePath) {
		return facts.Facts{}, nil, fmt.Errorf("--node-file %q: is not absolute and clean: %w", r.nodePath, errs.Invalid)
	}
	if r.runtimeVersion != "" {
		v, err := nodefile.ParseVersion(r.runtimeVersion)
		if err != nil {
			return facts.Facts{}, nil, fmt.Errorf("--runtime-version: %w", err)
		}
		s.Versions = map[string]nodefile.Version{n.Runtime.Name: v}
	}
	for _, p := range []struct {
		flag  string
		given render.Fetched
		to    *facts.Binary
	}{{"berth", r.berth, &s.Berth}, {"supervisor", r.supervisor, &s.Supervisor}} {
		if err := checkFetched(p.flag, p.given); err != nil {
			return facts.Facts{}, nil, err
		}
		*p.to = facts.Binary{Path: p.given.Source, Digest: p.given.Digest}
	}
	return facts.Assume(n, s)
}

// checkFetched wants both halves of a program to fetch, or none.
func checkFetched(flag string, f render.Fetched) error {
	switch {
	case f == render.Fetched{}:
		return nil
	case !strings.HasPrefix(f.Source, "https://") && !strings.HasPrefix(f.Source, "http://"):
		return fmt.Errorf("--%s %q: want a URL with http or https: %w", flag, f.Source, errs.Invalid)
	case !regexp.MustCompile(`^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`).MatchString(f.Digest):
		return fmt.Errorf("--%s-digest %q: want sha256:… or sha512:…: %w", flag, f.Digest, errs.Invalid)
	}
	return nil
}

// guard keeps secrets out of what others can read: user data is read by whatever
// runs on the machine, and standard output goes who knows where.
func (r *rendering) guard(secrets []string) error {
	ownersOnly := r.output != "-" && (r.target == "dir" || r.target == "script")
	if len(secrets) == 0 || r.allowSecrets || ownersOnly {
		return nil
	}
	reason := "pods can read user data on most clouds"
	if r.target == "script" {
		reason = "standard output may go anywhere; --output writes a file for its owner only"
	}
	return fmt.Errorf("secrets would be in it, of %s: %s; --allow-secrets consents: %w", strings.Join(secrets, ", "), reason, errs.Unsupported)
}

// write puts the rendering where it is wanted.
func (r *rendering) write(stdout io.Writer, out render.Output) error {
	switch {
	case r.target == "dir":
		return writeTree(r.output, out)
	case r.output == "-":
		_, err := stdout.Write(out.Text)
		return err
	}
	mode := os.FileMode(0o600)
	if r.target == "script" {
		mode = 0o700
	}
	return writeOwn(r.output, out.Text, mode)
}

// writeOwn writes a file anew, so that the mode of one that was there does not matter.
func writeOwn(file string, content []byte, mode os.FileMode) error {
	temporary, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*")
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", file, err)
	}
	_, err = temporary.Write(content)
	err = errors.Join(err, temporary.Chmod(mode), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", file, errors.Join(err, os.Remove(temporary.Name())))
	}
	return nil
}

// writeTree makes a directory with the tree in "root" and the manifest beside it. It
// is for its owner only; owners of files stand in the manifest.
func writeTree(dir string, out render.Output) error {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("directory %s is not empty: %w", dir, errs.Exists)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the tree: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory is searched
		return fmt.Errorf("cannot make the tree: %w", err)
	}
	if err := writeOwn(filepath.Join(dir, "manifest.json"), out.Text, 0o600); err != nil {
		return err
	}
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil { //nolint:gosec // below a directory of its owner
		return fmt.Errorf("cannot make the tree: %w", err)
	}
	for _, e := range out.Tree {
		if err := writeEntry(filepath.Join(root, e.Path), e); err != nil {
			return fmt.Errorf("cannot make the tree: %w", err)
		}
	}
	return nil
}

func writeEntry(at string, e render.Entry) error {
	if e.Type == "symlink" {
		return os.Symlink(e.Target, at)
	}
	n, err := strconv.ParseUint(cmp.Or(e.Mode, "0"), 8, 16)
	if err != nil {
		return err
	}
	mode := os.FileMode(n & 0o777)
	for bit, flag := range map[uint64]os.FileMode{0o4000: os.ModeSetuid, 0o2000: os.ModeSetgid, 0o1000: os.ModeSticky} {
		if n&bit != 0 {
			mode |= flag
		}
	}
	if e.Type == "directory" {
		err = os.Mkdir(at, 0o700)
	} else {
		err = os.WriteFile(at, e.Content, 0o600)
	}
	return errors.Join(err, os.Chmod(at, mode))
}
