// Package kubelet finds the kubelet of a machine, however it was set up: the running process, else
// the command of its unit, else the default files. It only reads, and talks to no daemon.
package kubelet

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

const (
	// Unit is the kubelet's, where systemd runs it.
	Unit = "kubelet.service"
	// ConfigFile is its usual configuration, FlagsFile kubeadm's environment file for it.
	ConfigFile = "/var/lib/kubelet/config.yaml"
	FlagsFile  = "/var/lib/kubelet/kubeadm-flags.env"
	// InstanceConfig is what kubeadm patches ConfigFile with at each upgrade, since 1.34 by default
	// (NodeLocalCRISocket): the kubelet does not read it.
	InstanceConfig = "/var/lib/kubelet/instance-config.yaml"
	// DefaultEndpoint is the runtime's of a kubelet that is Silent.
	DefaultEndpoint = "unix:///run/containerd/containerd.sock"
)

// Value is a setting and the file or process that says so.
type Value struct{ Text, From string }

// Kubelet has the settings of a machine's kubelet. The zero value is no kubelet.
type Kubelet struct {
	// Source says where it was found: "process 812", "kubelet.service", or a file.
	Source string
	// Program is what its unit starts; empty where it was not found by its unit.
	Program string
	// Endpoint is the runtime's, Driver the cgroup driver, ResolvConf the file that pods get
	// their name servers from. An empty Text is the kubelet's own default.
	Endpoint, Driver, ResolvConf Value
	// FailSwapOn is nil if no file and no option sets it.
	FailSwapOn *bool
	// Config is the main configuration file; empty when it has none.
	Config string
	// Files are all that settings may be read from, in the order in which they are read: a
	// later one wins.
	Files []string
	// Limits are further settings that a runtime and a machine must fit.
	Limits Limits
}

// Limits are settings of a kubelet that a runtime and a machine must fit. An empty Text is the
// kubelet's own default; numbers and switches are as the kubelet reads them.
type Limits struct {
	ImageEndpoint, PodCIDR, MaxPods, PodPIDs, SeccompDefault, ProtectKernel, IDsPerPod Value
	// Eviction are the hard thresholds by signal, such as "imagefs.available": "15%"; nil if none is
	// set. EvictionFrom is the file or process that says so.
	Eviction     map[string]string
	EvictionFrom string
	// MergeEviction: signals that Eviction does not have keep their default, and are not off.
	MergeEviction bool
}

// There reports whether the machine has a kubelet.
func (k Kubelet) There() bool { return k.Source != "" }

// SetUp reports whether the machine has a kubelet with its configuration: without it, as before kubeadm, it cannot start.
func (k Kubelet) SetUp(files provision.Files) bool {
	return k.There() && (k.Config == "" || provision.Exists(files, k.Config))
}

// Silent reports whether the kubelet names no endpoint, and so has DefaultEndpoint. A unit without a configuration, as packages
// bring it, does not show that while it does not run: it may never be used, or start a program that names an endpoint.
func (k Kubelet) Silent(files provision.Files) bool {
	return k.Endpoint.Text == "" && (strings.HasPrefix(k.Source, processSource) || k.Config != "" && provision.Exists(files, k.Config))
}

// Find looks for the kubelet. An error is a configuration that cannot be read; what was
// found until then is returned with it.
func Find(host provision.Host) (Kubelet, error) {
	files := host.Files()
	command, err := running(host)
	if err != nil {
		return Kubelet{}, err
	}
	if !command.found() {
		if command, err = ofUnit(files); err != nil {
			return Kubelet{}, err
		}
	}
	if !command.found() {
		if command, err = usual(files); err != nil || !command.found() {
			return Kubelet{}, err
		}
	}
	k := Kubelet{Source: command.source, Program: command.program, Config: command.option("config")}
	err = k.readConfigs(files, command.option("config-dir"))
	k.Files = append(k.Files, command.files...)
	k.readOptions(files, command)
	return k, err
}

// command is how a kubelet is started.
type command struct {
	source string
	args   []string
	// program is what a unit starts.
	program string
	// files are those that args were read from.
	files []string
}

func (c command) found() bool { return c.source != "" }

// option is the last value of an option; "" when it is not given.
func (c command) option(name string) string {
	value := ""
	for i, arg := range c.args {
		if text, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			value = text
		} else if arg == "--"+name && i+1 < len(c.args) {
			value = c.args[i+1]
		}
	}
	return value
}

// usual is a kubelet with kubeadm's or berth's files and no command: set up, but never started.
func usual(files provision.Files) (command, error) {
	if _, err := files.Stat(ConfigFile); err != nil {
		return command{}, errs.IgnoreNotFound(err)
	}
	c := command{source: ConfigFile, args: []string{"--config=" + ConfigFile}}
	flags, err := environmentFile(files, FlagsFile)
	if err == nil {
		c.files = []string{FlagsFile}
		for _, value := range flags {
			c.args = append(c.args, words(value)...)
		}
	}
	return c, errs.IgnoreNotFound(err)
}

// fields are those of a KubeletConfiguration that matter here.
type fields struct {
	Endpoint   string  `json:"containerRuntimeEndpoint"`
	Driver     string  `json:"cgroupDriver"`
	FailSwapOn *bool   `json:"failSwapOn"`
	ResolvConf *string `json:"resolvConf"`

	limitFields
}

// readConfigs reads the configuration and its drop-ins.
func (k *Kubelet) readConfigs(files provision.Files, dropIns string) error {
	var list []string
	if k.Config != "" {
		list = append(list, k.Config)
	}
	if dropIns != "" {
		names, err := files.ReadDir(dropIns)
		if errs.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot read the kubelet's configurations: %w", err)
		}
		for _, name := range names {
			if path.Ext(name) == ".conf" {
				list = append(list, path.Join(dropIns, name))
			}
		}
	}
	for _, file := range list {
		data, err := read(files, file)
		if errs.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot read the kubelet's configuration: %w", err)
		}
		var f fields
		if err := yaml.Unmarshal(data, &f); err != nil {
			return fmt.Errorf("%s is not YAML: %w: %w", file, errs.Invalid, err)
		}
		k.Files = append(k.Files, file)
		set(&k.Endpoint, f.Endpoint, file)
		set(&k.Driver, f.Driver, file)
		if f.FailSwapOn != nil {
			k.FailSwapOn = f.FailSwapOn
		}
		if f.ResolvConf != nil {
			k.ResolvConf = Value{*f.ResolvConf, file}
		}
		k.Limits.read(f.limitFields, file)
	}
	return nil
}

// readOptions reads the command line, which wins over configurations.
func (k *Kubelet) readOptions(files provision.Files, c command) {
	for name, value := range map[string]*Value{
		"container-runtime-endpoint": &k.Endpoint, "cgroup-driver": &k.Driver, "resolv-conf": &k.ResolvConf,
		"image-service-endpoint": &k.Limits.ImageEndpoint, "pod-cidr": &k.Limits.PodCIDR, "max-pods": &k.Limits.MaxPods,
		"pod-max-pids": &k.Limits.PodPIDs, "seccomp-default": &k.Limits.SeccompDefault,
		"protect-kernel-defaults": &k.Limits.ProtectKernel,
	} {
		set(value, c.option(name), c.holder(files, "--"+name))
	}
	if on, err := strconv.ParseBool(c.option("fail-swap-on")); err == nil {
		k.FailSwapOn = &on
	}
	if text := c.option("eviction-hard"); text != "" {
		k.Limits.Eviction, k.Limits.EvictionFrom = evictionOption(text), c.holder(files, "--eviction-hard")
	}
}

// holder is the file that has an option, or else the source of the command.
func (c command) holder(files provision.Files, option string) string {
	for _, file := range slices.Backward(c.files) {
		if data, err := read(files, file); err == nil && strings.Contains(string(data), option) {
			return file
		}
	}
	return c.source
}

func set(value *Value, text, from string) {
	if text != "" {
		*value = Value{text, from}
	}
}
