package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysns"
)

// Call is one call of a plugin. Its methods are for the thread that runs it.
type Call struct {
	// Command is the verb.
	Command string
	// ContainerID, NetNS and IfName name the attachment. NetNS is a path; DEL may have none.
	ContainerID, NetNS, IfName string
	// Args are more arguments, NAME=VALUE;NAME=VALUE.
	Args string
	// Path are the directories of plugins, separated by ':'.
	Path string
	// Config is the plugin's configuration: JSON.
	Config []byte

	env   Environment
	stage string
	// cniVersion is that of the configuration, "" for none.
	cniVersion string
	home       *os.File // the host's network namespace
	links      *netlinksafe.Handle
	away       bool // the thread is in another namespace than at its start
}

func newCall(in Environment, config []byte) *Call {
	return &Call{env: in, Config: config, stage: "start"}
}

// Stage names what the call does now. The errors of a panic and of a deadline have it.
func (c *Call) Stage(name string) {
	c.stage = name
	if c.env.Stage != nil {
		c.env.Stage(name)
	}
}

// Environ are the variables of the call, for programs that the plugin starts.
func (c *Call) Environ() []string { return c.env.Env }

// Home is the host's network namespace.
func (c *Call) Home() *os.File { return c.home }

// InNetNS runs fn on the calling thread in another network namespace.
func (c *Call) InNetNS(other ns.NetNS, fn func() error) error {
	before := c.away
	c.away = true
	if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("error switching to ns %v: %w", other.Path(), err)
	}
	err := fn()
	if back := unix.Setns(int(c.home.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, fmt.Errorf("cannot return to the host's network namespace: %w", back))
	}
	c.away = before
	return err
}

// InPod runs fn in the pod's network namespace. The error is an ns.NSPathNotExistErr where there
// is none.
func (c *Call) InPod(fn func() error) error {
	pod, err := ns.GetNS(c.NetNS)
	if err != nil {
		return err
	}
	defer pod.Close()
	return c.InNetNS(pod, fn)
}

// Links is a socket for requests about links of the host. It is opened at the first use, on the call's thread while that
// is in the host's network namespace. A request with a socket of its own would take several times as long.
func (c *Call) Links() netlinksafe.Handle {
	if c.links == nil {
		links, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			links.Handle = &netlink.Handle{} // opens one for each request, which then has the error
		}
		c.links = &links
	}
	return *c.links
}

// WriteSysctl sets a sysctl in the network namespace of the thread, by its file below /proc/sys.
func WriteSysctl(file, value string) error {
	var dirs sysns.SysctlDirs
	defer dirs.Close()
	return dirs.Write(file, value)
}

// IsGone reports whether an error is that a network namespace does not exist.
func IsGone(err error) bool {
	var gone ns.NSPathNotExistErr
	return errors.As(err, &gone)
}

// Previous returns the prevResult of a configuration in the current version, nil for none.
func Previous(conf *types.NetConf) (*types100.Result, error) {
	if conf.RawPrevResult == nil {
		return nil, nil
	}
	if err := version.ParsePrevResult(conf); err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(conf.PrevResult)
}

// ChainedPrevious is Previous for the plugins that read the result together with their configuration.
// Texts of errors are theirs.
func ChainedPrevious(conf *types.NetConf) (*types100.Result, error) {
	if conf.RawPrevResult == nil {
		return nil, nil
	}
	if err := version.ParsePrevResult(conf); err != nil {
		return nil, fmt.Errorf("could not parse prevResult: %w", err)
	}
	result, err := types100.NewResultFromResult(conf.PrevResult)
	if err != nil {
		return nil, fmt.Errorf("could not convert result to current version: %w", err)
	}
	return result, nil
}

// delegate finds another plugin and returns its path with the variables that it gets.
func (c *Call) delegate(verb, plugin string) (string, invoke.CNIArgs, error) {
	path, err := c.env.Exec.FindInPath(plugin, filepath.SplitList(c.Path))
	if err != nil {
		return "", nil, err
	}
	env := slices.DeleteFunc(slices.Clone(c.env.Env), func(v string) bool { return strings.HasPrefix(v, "CNI_COMMAND=") })
	return path, variables(append(env, "CNI_COMMAND="+verb)), nil
}

// Delegate runs a verb of another plugin with the configuration of this call.
func (c *Call) Delegate(ctx context.Context, verb, plugin string) error {
	path, args, err := c.delegate(verb, plugin)
	if err != nil {
		return err
	}
	return invoke.ExecPluginWithoutResult(ctx, path, c.Config, args, c.env.Exec)
}

// DelegateAdd runs ADD of another plugin with the configuration of this call.
func (c *Call) DelegateAdd(ctx context.Context, plugin string) (*types100.Result, error) {
	path, args, err := c.delegate("ADD", plugin)
	if err != nil {
		return nil, err
	}
	return addOf(ctx, path, c.Config, args, c.env.Exec)
}

func addOf(ctx context.Context, path string, config []byte, args invoke.CNIArgs, exec invoke.Exec) (*types100.Result, error) {
	result, err := invoke.ExecPluginWithResult(ctx, path, config, args, exec)
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(result)
}

// variables are the environment of a call.
type variables []string

// AsEnv implements invoke.CNIArgs.
func (v variables) AsEnv() []string { return v }

// Options are keys of a configuration with those below them, nil for a key with any value.
// encoding/json, which reads configurations, ignores case, and so do Options.
type Options map[string]Options

// Any is for a key with any value below it.
func Any() Options { return nil }

// common are the keys that the specification and libcni give every plugin's configuration.
func common() Options {
	return Options{
		"cniVersion": nil, "name": nil, "type": nil, "capabilities": nil, "ipam": nil, "dns": nil, "args": nil,
		"prevResult": nil, "runtimeConfig": nil, "cni.dev/valid-attachments": nil, "cni.dev/attachments": nil,
	}
}

// UnknownOption returns the path of the first key in a configuration that the plugin does not understand, ""
// for none.
func (p *Plugin) UnknownOption(config []byte) string {
	var top map[string]json.RawMessage
	if json.Unmarshal(config, &top) != nil {
		return "" // the verb reports it
	}
	for key, value := range sorted(top) {
		below, ok := p.Options.find(key)
		if !ok {
			below, ok = common().find(key)
		}
		if !ok && !p.IPAM {
			return key
		}
		if unknown := below.unknown(value); unknown != "" {
			return key + unknown
		}
	}
	return ""
}

func (o Options) find(key string) (Options, bool) {
	if below, ok := o[key]; ok {
		return below, true
	}
	for known, below := range o {
		if strings.EqualFold(known, key) {
			return below, true
		}
	}
	return nil, false
}

// unknown returns the path below value of a key that is not among the options, "" for none. Items of lists count
// as their list.
func (o Options) unknown(value json.RawMessage) string {
	if o == nil {
		return ""
	}
	var list []json.RawMessage
	if json.Unmarshal(value, &list) == nil {
		for i, item := range list {
			if unknown := o.unknown(item); unknown != "" {
				return fmt.Sprintf("[%d]%s", i, unknown)
			}
		}
		return ""
	}
	var keys map[string]json.RawMessage
	if json.Unmarshal(value, &keys) != nil {
		return ""
	}
	for key, value := range sorted(keys) {
		below, ok := o.find(key)
		if !ok {
			return "." + key
		}
		if unknown := below.unknown(value); unknown != "" {
			return "." + key + unknown
		}
	}
	return ""
}

// sorted yields a map in the order of its keys, so that an error is the same each time.
func sorted(m map[string]json.RawMessage) func(yield func(string, json.RawMessage) bool) {
	return func(yield func(string, json.RawMessage) bool) {
		keys := make([]string, 0, len(m))
		for key := range m {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		for _, key := range keys {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}
