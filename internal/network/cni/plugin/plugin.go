// Package plugin is the frame of CNI plugins that run without a program of their own: inside
// berth, and in berth-cni. It reads a call as the CNI specification writes it (environment and
// configuration), checks it, runs the verb (on an OS thread of its own, if it may enter a namespace)
// and prints the result.
//
// Codes and texts of errors are those of the plugins of github.com/containernetworking/plugins:
// users and other programs know them. The package does not know what the plugins do, and not how
// berth chooses between a program and a Plugin.
package plugin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// Plugin is one CNI plugin. Its functions run on a thread that is in the host's network namespace, those of an IPAM
// plugin and of an Idle call on any.
// All of them may run again after they have failed or have been killed halfway. Nil ones succeed.
type Plugin struct {
	// Type is the name that configurations use.
	Type string
	// Versions are those of CNI that it supports.
	Versions version.PluginInfo
	// Options are the keys of its configuration that it understands, besides those that all
	// plugins have.
	Options Options
	// IPAM is a plugin that others run: keys that it does not understand are theirs, except those below its own. It works
	// with files, and enters no namespace.
	IPAM bool
	// Other says why the plugin cannot serve a configuration whose options it understands, "" if it
	// can. Nil for a plugin that can serve all of them.
	Other func(config []byte) string
	// Here says why the plugin cannot serve a configuration on this host as it is now, "" if it can. Nil for a plugin
	// that can on every host.
	Here func(config []byte) string
	// Idle reports that the verbs have nothing to do on the host with a configuration: a call then needs no thread. Nil for
	// a plugin that always has.
	Idle func(config []byte) bool
	// Chained is a plugin that needs the result of another one before it.
	Chained bool
	// Load reads the configuration of a call as the verbs do, and reports what ADD would refuse with every pod. Nil for a
	// plugin that refuses nothing.
	Load func(*Call) error
	// Add returns the result in any version.
	Add func(context.Context, *Call) (types.Result, error)
	// Del, Check and Status are the verbs. GC of the plugins that we have does nothing.
	Del, Check, Status func(context.Context, *Call) error
}

// Environment is where a plugin runs.
type Environment struct {
	// HostNetNS is the path of the host's network namespace, "" for that of the process.
	HostNetNS string
	// Exec runs other plugins, such as that of IPAM.
	Exec invoke.Exec
	// Stage gets the name of what the call does, each time that it changes, on any goroutine. Nil for nobody.
	Stage func(name string)
	// Chosen is that the caller has asked Cannot and CannotHere.
	Chosen bool
	// Env are the variables of the call, NAME=VALUE; the last one of a name counts. They are
	// passed on to other plugins.
	Env []string
}

// Run makes one call with the configuration config, and returns what the plugin prints. An error
// is a *types.Error, with the plugin's code. Run does not return before the work has ended: ctx
// ends other plugins and waits, but not each call to the kernel.
func (p *Plugin) Run(ctx context.Context, in Environment, config []byte) (out []byte, err error) {
	if p.IPAM {
		return p.callHere(ctx, newCall(in, config))
	}
	done := make(chan struct{})
	p.Start(ctx, in, config, func(printed []byte, fault error) {
		out, err = printed, fault
		close(done)
	})
	<-done
	return out, err
}

// Start is Run on a goroutine of its own, which calls ended with what Run returns. The goroutine has a thread of its own,
// except that of a plugin that enters no namespace.
func (p *Plugin) Start(ctx context.Context, in Environment, config []byte, ended func([]byte, error)) {
	c := newCall(in, config)
	// A check of the pod's namespace needs a thread in the host's.
	if p.IPAM || (p.Idle != nil && in.HostNetNS == "" && p.Idle(config)) {
		go func() { ended(p.callHere(ctx, c)) }()
		return
	}
	sysns.GoOnThread(func() {
		out, err := p.call(ctx, c, c.atHome)
		if !c.away { // else the thread may be in another namespace than before, and ends
			runtime.UnlockOSThread()
		}
		ended(out, err)
	})
}

// callHere makes a call that enters no namespace, on any thread.
func (p *Plugin) callHere(ctx context.Context, c *Call) ([]byte, error) {
	return p.call(ctx, c, func(fn func() error) error { return fn() })
}

// call makes the call, and runs the verb by means of around.
func (p *Plugin) call(ctx context.Context, c *Call, around func(func() error) error) ([]byte, error) {
	if err := c.read(); err != nil {
		return nil, err
	}
	if c.Command == "VERSION" {
		var out bytes.Buffer
		if err := p.Versions.Encode(&out); err != nil {
			return nil, types.NewError(types.ErrIOFailure, err.Error(), "")
		}
		return out.Bytes(), nil
	}
	why := ""
	if !c.env.Chosen {
		why = p.Cannot(c.Config)
		// A DEL undoes what the plugin has done here, whatever the host has become since.
		if why == "" && c.Command != "DEL" {
			why = p.CannotHere(c.Command, c.Config)
		}
	}
	if why != "" {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("the CNI plugin %s of berth %s", p.Type, why), "")
	}
	out, err := p.guarded(ctx, c, around)
	var known *types.Error
	switch {
	case err == nil:
		return out, nil
	case errors.As(err, &known):
		return nil, known
	default:
		return nil, types.NewError(types.ErrInternal, err.Error(), "")
	}
}

// Cannot says why the plugin cannot serve a configuration that the reference may serve, "" if it can.
func (p *Plugin) Cannot(config []byte) string {
	if unknown := p.UnknownOption(config); unknown != "" {
		return fmt.Sprintf("does not know the option %q", unknown)
	}
	if p.Other == nil {
		return ""
	}
	return p.Other(config)
}

// Refuses reports what is wrong with a configuration, with which ADD would fail for every pod. What a runtime adds for a
// pod is not looked at. The configuration has the name of the network and the version. A wrong type is a
// *json.UnmarshalTypeError.
func (p *Plugin) Refuses(config []byte) error {
	if p.Load == nil {
		return nil
	}
	return p.Load(&Call{Command: "ADD", Config: config})
}

// Loads makes Load of the function that reads a plugin's configuration.
func Loads[T any](load func(*Call) (T, error)) func(*Call) error {
	return func(c *Call) error {
		_, err := load(c)
		return err
	}
}

// CannotHere says why the plugin cannot serve a verb with a configuration on this host now, "" if it can. It may ask
// other programs, and so is for once in a call.
func (p *Plugin) CannotHere(verb string, config []byte) string {
	if p.Here == nil || verb == "VERSION" || verb == "GC" {
		return ""
	}
	return p.Here(config)
}

// guarded runs the verb. A panic is an error of this call alone.
func (p *Plugin) guarded(ctx context.Context, c *Call, around func(func() error) error) (out []byte, err error) {
	panicked := true
	err = errs.Guard(fmt.Sprintf("%s of the CNI plugin %s inside berth", c.Command, p.Type), func() (err error) {
		err = around(func() (err error) {
			out, err = p.dispatch(ctx, c)
			return err
		})
		panicked = false
		return err
	})
	if panicked {
		c.away = true // perhaps
		err = fmt.Errorf("stage %q: %w", c.stage, err)
	}
	return out, err
}

// atHome runs fn in the host's network namespace.
func (c *Call) atHome(fn func() error) error {
	home, err := sysns.OpenThreadNetNS()
	if err != nil {
		return err
	}
	defer home.Close()
	c.home = home
	defer func() {
		if c.links != nil {
			c.links.Close()
		}
	}()
	if c.env.HostNetNS == "" {
		return fn()
	}
	host, err := sysns.OpenNetNS(c.env.HostNetNS)
	if err != nil {
		return err
	}
	defer host.Close()
	c.home = host
	c.away = true // the thread has to come back
	if err := unix.Setns(int(host.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("cannot enter the network namespace %s: %w", c.env.HostNetNS, err)
	}
	err = fn()
	c.home = home
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back == nil {
		c.away = false
	}
	return err
}

// dispatch checks what every verb needs, and runs the verb.
func (p *Plugin) dispatch(ctx context.Context, c *Call) ([]byte, error) {
	configured := cmp.Or(c.cniVersion, "0.1.0") // as the specification has it for none
	if since := map[string]string{"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}[c.Command]; since != "" {
		if err := p.has(c.Command, since, configured); err != nil {
			return nil, err
		}
	}
	if verr := (&version.Reconciler{}).Check(configured, p.Versions); verr != nil {
		return nil, types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions", verr.Details())
	}
	var out bytes.Buffer
	switch c.Command {
	case "ADD":
		result, err := p.Add(ctx, c)
		if err != nil {
			return nil, err
		}
		if err := c.print(&out, result); err != nil {
			return nil, err
		}
		return out.Bytes(), c.otherNetNS()
	case "DEL":
		if err := run(ctx, p.Del, c); err != nil {
			return nil, err
		}
		return nil, c.otherNetNS()
	case "CHECK":
		return nil, run(ctx, p.Check, c)
	case "STATUS":
		return nil, run(ctx, p.Status, c)
	case "GC":
		return nil, nil
	default:
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("unknown CNI_COMMAND: %v", c.Command), "")
	}
}

func run(ctx context.Context, verb func(context.Context, *Call) error, c *Call) error {
	if verb == nil {
		return nil
	}
	return verb(ctx, c)
}

// has reports, as an error, that a verb is not in the configuration's version, or not in those
// of the plugin.
func (p *Plugin) has(verb, since, configured string) error {
	allowed, err := version.GreaterThanOrEqualTo(configured, since)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	if !allowed {
		return types.NewError(types.ErrIncompatibleCNIVersion, "config version does not allow "+verb, "")
	}
	for _, supported := range p.Versions.SupportedVersions() {
		if enough, err := version.GreaterThanOrEqualTo(supported, configured); err == nil && enough {
			return nil
		}
	}
	return types.NewError(types.ErrIncompatibleCNIVersion, fmt.Sprintf("plugin version does not allow %s", verb), "")
}

// print writes the result in the version of the configuration.
func (c *Call) print(out *bytes.Buffer, result types.Result) error {
	if result == nil {
		return errors.New("there is no result to print: the plugin has no prevResult (it must be called as a chained plugin)")
	}
	result, err := result.GetAsVersion(c.cniVersion)
	if err != nil {
		return err
	}
	return result.PrintTo(out)
}

// otherNetNS is an error if the pod's namespace is the host's, as the CNI library reports it: after the verb.
func (c *Call) otherNetNS() error {
	if override := c.get("CNI_NETNS_OVERRIDE"); strings.EqualFold(override, "TRUE") || override == "1" {
		return nil
	}
	same, err := ns.CheckNetNS(c.NetNS)
	if err != nil {
		return err
	}
	if same {
		return types.NewError(types.ErrInvalidNetNS, "plugin's netns and netns from CNI_NETNS should not be the same", "")
	}
	return nil
}

// read reads the variables of the call and checks the name of the network.
func (c *Call) read() error {
	attachment := []string{"ADD", "CHECK", "DEL"}
	all := []string{"ADD", "CHECK", "DEL", "GC", "STATUS"}
	var missing []string
	for _, v := range []struct {
		name     string
		value    *string
		required []string
		validate func(string) *types.Error
	}{
		{"CNI_COMMAND", &c.Command, all, nil},
		{"CNI_CONTAINERID", &c.ContainerID, attachment, utils.ValidateContainerID},
		{"CNI_NETNS", &c.NetNS, []string{"ADD", "CHECK"}, nil},
		{"CNI_IFNAME", &c.IfName, attachment, utils.ValidateInterfaceName},
		{"CNI_ARGS", &c.Args, nil, nil},
		{"CNI_PATH", &c.Path, all, nil},
	} {
		*v.value = c.get(v.name)
		required := slices.Contains(v.required, c.Command)
		switch {
		case *v.value == "" && (required || v.name == "CNI_COMMAND"):
			missing = append(missing, v.name)
		case *v.value != "" && required && v.validate != nil:
			if err := v.validate(*v.value); err != nil {
				return err
			}
		}
	}
	if len(missing) > 0 {
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("required env variables [%s] missing", strings.Join(missing, ",")), "")
	}
	if c.Command == "VERSION" {
		return nil
	}
	var conf struct {
		Name       string `json:"name"`
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(c.Config, &conf); err != nil {
		var notText *json.UnmarshalTypeError
		if errors.As(err, &notText) && notText.Field == "cniVersion" && conf.Name != "" {
			return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decoding version from network config: %v", err), "")
		}
		return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("error unmarshall network config: %v", err), "")
	}
	c.cniVersion = conf.CNIVersion
	if conf.Name == "" {
		return types.NewError(types.ErrInvalidNetworkConfig, "missing network name", "")
	}
	if err := utils.ValidateNetworkName(conf.Name); err != nil {
		return err
	}
	return nil
}

// get returns a variable of the call.
func (c *Call) get(name string) string {
	for _, v := range slices.Backward(c.env.Env) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// Main makes the call that the process's environment and input describe, as a plugin's program
// does, and returns its exit code.
func (p *Plugin) Main(ctx context.Context, config []byte, stdout, stderr *os.File) int {
	out, err := p.Run(ctx, Environment{Env: os.Environ(), Exec: &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: stderr}}}, config)
	if err == nil {
		if _, err := stdout.Write(out); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		return 0
	}
	var known *types.Error
	if !errors.As(err, &known) {
		known = types.NewError(types.ErrInternal, err.Error(), "")
	}
	text, err := json.MarshalIndent(known, "", "    ")
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	fmt.Fprintf(stdout, "%s", text)
	return 1
}
