package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/berthrun/berth/internal/cluster/provider/command"
	"github.com/berthrun/berth/internal/errs"
)

// CLI is a Provider that runs a command-line tool like docker's: docker, podman, nerdctl or finch.
type CLI struct {
	dialect
	run     command.Runner
	facts   Facts
	version *version.Version
	// host is the root of this host's file system, env its environment.
	host fs.FS
	env  map[string]string
	// daemon is the address of docker's daemon; "" is its default.
	daemon string
	// mkdir creates a directory of this host; nil creates none.
	mkdir func(path string) error
}

var _ Provider = (*CLI)(nil)

// Options say how to find an engine.
type Options struct {
	// Name is the tool of --provider. Empty: KIND_EXPERIMENTAL_PROVIDER of Env, else the first
	// usable tool.
	Name string
	// FirstInstalled stops at the first installed tool, as kind does: if it cannot be used, Find
	// fails and tries no other. It has no effect with a name.
	FirstInstalled bool
	// Env is the environment of the process.
	Env map[string]string
	// Trace receives each call of the tool; nil for none.
	Trace func(tool string, args []string)
}

// providerVariable is kind's variable that selects the engine.
const providerVariable = "KIND_EXPERIMENTAL_PROVIDER"

// ErrNoTool means that there is no usable tool, and none was requested.
var ErrNoTool = errors.New("no container engine can be used")

// Find opens the requested engine; without a name the first usable one, in kind's order. skipped
// are those before it, each with the reason, for people. The error is ErrNoTool if there is none.
func Find(ctx context.Context, o Options) (e *CLI, skipped []error, err error) {
	look := func(tool string) command.Runner {
		if !command.Found(tool) {
			return nil
		}
		return command.Tool{Name: tool, Trace: o.Trace}
	}
	return find(ctx, o, look, func(tool string) (*CLI, error) { return Open(ctx, tool, o) })
}

// find has the tools that look knows; nil is an absent one.
func find(ctx context.Context, o Options, look func(tool string) command.Runner, open func(tool string) (*CLI, error)) (*CLI, []error, error) {
	name := o.Name
	if name == "" {
		name = o.Env[providerVariable]
	}
	if name != "" {
		if _, err := dialectOf(name); err != nil {
			return nil, nil, err
		}
		if look(name) == nil {
			return nil, nil, fmt.Errorf("provider %s was requested, and no program %s is in PATH: %w", name, name, errs.Unsupported)
		}
		e, err := open(name)
		return e, nil, err
	}
	var tools []string
	var skipped []error
	for _, d := range dialects() {
		for _, tool := range d.tools {
			tools = append(tools, tool)
			run := look(tool)
			if run == nil || !d.speaks(ctx, tool, run) {
				continue
			}
			e, err := open(tool)
			switch {
			case err == nil:
				return e, skipped, nil
			case ctx.Err() != nil:
				return nil, nil, context.Cause(ctx)
			case !errors.Is(err, errs.Unavailable) && !errors.Is(err, errs.Unsupported):
				return nil, nil, err
			case o.FirstInstalled:
				return nil, nil, fmt.Errorf("%w\n  kind uses the first engine that is installed; to use another: %s=podman", err, providerVariable)
			}
			skipped = append(skipped, err)
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case len(skipped) > 0:
		return nil, nil, fmt.Errorf("failed to detect any supported node provider: none of those that are installed can be used: %w: %w", errors.Join(skipped...), ErrNoTool)
	}
	return nil, nil, fmt.Errorf("failed to detect any supported node provider: none of %s is in PATH; install one of them: %w", strings.Join(tools, ", "), errors.Join(ErrNoTool, errs.Unsupported))
}

// speaks reports whether a tool is what its name says: podman has a package that installs a program
// docker, which needs podman's dialect.
func (d dialect) speaks(ctx context.Context, tool string, run command.Runner) bool {
	out, err := command.Output(ctx, run, "--version")
	return err == nil && bytes.HasPrefix(out, []byte(d.bannerOf(tool)))
}

// bannerOf is how a tool's --version begins.
func (d dialect) bannerOf(tool string) string {
	if tool == "finch" {
		return "finch version"
	}
	return d.banner
}

// Open reads a tool's version and facts. The error is errs.Unavailable if its daemon does not
// answer, and errs.Unsupported if it is too old.
func Open(ctx context.Context, tool string, o Options) (*CLI, error) {
	e, err := open(ctx, tool, command.Tool{Name: tool, Trace: o.Trace}, os.DirFS("/"), o.Env)
	if err != nil {
		return nil, err
	}
	e.mkdir = func(path string) error { return os.MkdirAll(path, 0o755) }
	return e, nil
}

func open(ctx context.Context, tool string, run command.Runner, host fs.FS, env map[string]string) (*CLI, error) {
	d, err := dialectOf(tool)
	if err != nil {
		return nil, err
	}
	e := &CLI{dialect: d, run: run, host: host, env: env}
	out, err := command.Output(ctx, run, "--version")
	if err != nil {
		return nil, fmt.Errorf("cannot read the version of %s: %w", tool, err)
	}
	if e.version, err = readVersion(string(out)); err != nil {
		return nil, fmt.Errorf("cannot find the version of %s in %q: %w", tool, strings.TrimSpace(string(out)), err)
	}
	e.facts.Version = e.version.String()
	// finch has its own version numbers.
	if d.oldest != "" && tool != "finch" && e.version.LessThan(version.MustParseGeneric(d.oldest)) {
		return nil, fmt.Errorf("%s version %q is too old, please upgrade to %q or later: %s: %w", tool, e.version, d.oldest, d.upgrade, errs.Unsupported)
	}
	if err := e.readFacts(ctx); err != nil {
		if d.start != "" {
			return nil, fmt.Errorf("cannot read the status of %s; if its daemon does not run: %s: %w", tool, d.start, err)
		}
		return nil, fmt.Errorf("cannot read the status of %s: %w", tool, err)
	}
	return e, nil
}

// readVersion finds the version in "podman version 4.3.1" or
// "Docker version 20.10.24+dfsg1, build 297e128".
func readVersion(text string) (*version.Version, error) {
	for _, word := range strings.Fields(text) {
		word = strings.TrimPrefix(strings.TrimSuffix(word, ","), "v")
		if word != "" && word[0] >= '0' && word[0] <= '9' {
			return version.ParseGeneric(word)
		}
	}
	return nil, fmt.Errorf("no version: %w", errs.Unsupported)
}

// Name is the dialect's.
func (e *CLI) Name() string { return e.name }

// Facts are those of Open.
func (e *CLI) Facts() Facts { return e.facts }
