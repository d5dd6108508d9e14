// Package tuning is the CNI plugin tuning: sysctls of the pod's network, and attributes of its
// link. It keeps the attributes that it changes in a file, whose format is the reference's.
package tuning

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/network/cni/plugin"
)

const (
	defaultDataDir = "/run/cni/tuning"
	allowlistFile  = "/etc/cni/tuning/allowlist.conf"
	sysctlDir      = "/proc/sys"
)

// conf is the plugin's configuration.
type conf struct {
	types.NetConf
	DataDir string            `json:"dataDir"`
	Sysctls map[string]string `json:"sysctl"`
	attributes
	RuntimeConfig struct {
		MAC string `json:"mac"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			Sysctls  map[string]string `json:"sysctl"`
			MAC      *string           `json:"mac"`
			Promisc  *bool             `json:"promisc"`
			MTU      *int              `json:"mtu"`
			AllMulti *bool             `json:"allmulti"`
			TxQueue  *int              `json:"txQLen"`
		} `json:"cni"`
	} `json:"args"`
}

// attributes are those of the link that shall be changed.
type attributes struct {
	MAC      string `json:"mac"`
	Promisc  bool   `json:"promisc"`
	MTU      int    `json:"mtu"`
	TxQueue  *int   `json:"txQLen"`
	AllMulti *bool  `json:"allmulti"`
}

// any reports whether an attribute shall be changed.
func (a *attributes) any() bool {
	return a.MAC != "" || a.Promisc || a.MTU != 0 || a.TxQueue != nil || a.AllMulti != nil
}

// New returns the plugin.
func New() *plugin.Plugin {
	return &plugin.Plugin{
		Type: "tuning", Chained: true, Versions: version.All, Add: add, Del: del, Check: check, Load: plugin.Loads(load),
		Options: plugin.Options{
			"dataDir": nil, "sysctl": nil, "mac": nil, "promisc": nil, "mtu": nil, "txQLen": nil, "allmulti": nil,
		},
	}
}

// load reads the configuration. Values of the call replace those of the file.
func load(c *plugin.Call) (*conf, error) {
	n := &conf{}
	if err := json.Unmarshal(c.Config, n); err != nil {
		return nil, fmt.Errorf("failed to load netconf: %w", err)
	}
	if n.DataDir == "" {
		n.DataDir = defaultDataDir
	}
	if c.Args != "" {
		var args struct {
			types.CommonArgs
			MAC types.UnmarshallableString
		}
		if err := types.LoadArgs(c.Args, &args); err != nil {
			return nil, err
		}
		if args.MAC != "" {
			n.MAC = string(args.MAC)
		}
	}
	if n.RuntimeConfig.MAC != "" {
		n.MAC = n.RuntimeConfig.MAC
	}
	own := n.Args.CNI
	for key, value := range own.Sysctls {
		if n.Sysctls == nil {
			n.Sysctls = map[string]string{}
		}
		n.Sysctls[key] = value
	}
	replace(&n.MAC, own.MAC)
	replace(&n.Promisc, own.Promisc)
	replace(&n.MTU, own.MTU)
	if own.AllMulti != nil {
		n.AllMulti = own.AllMulti
	}
	if own.TxQueue != nil {
		n.TxQueue = own.TxQueue
	}
	return n, nil
}

func replace[T any](value, by *T) {
	if by != nil {
		*value = *by
	}
}

// loadChained is load, with the sysctls and the result of the plugins before.
func loadChained(c *plugin.Call) (*conf, *types100.Result, error) {
	var keys struct {
		Sysctls keysOnce `json:"sysctl"`
	}
	if err := json.Unmarshal(c.Config, &keys); err != nil {
		return nil, nil, err
	}
	n, err := load(c)
	if err != nil {
		return nil, nil, err
	}
	if c.Command == "ADD" {
		if err := checkAllowed(n.Sysctls); err != nil {
			return nil, nil, err
		}
		if strings.ContainsRune(c.IfName, os.PathSeparator) {
			return nil, nil, fmt.Errorf("Interface name (%s) contains an invalid character %c", c.IfName, os.PathSeparator)
		}
	}
	previous, err := plugin.Previous(&n.NetConf)
	if err != nil {
		return nil, nil, err
	}
	if previous == nil {
		return nil, nil, errors.New("Required prevResult missing")
	}
	return n, previous, nil
}

// keysOnce is an object of JSON with strings that has no key twice.
type keysOnce struct{}

// UnmarshalJSON implements json.Unmarshaler.
func (*keysOnce) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte("{")) {
		return json.Unmarshal(data, &map[string]string{}) // its error says what is there instead
	}
	decode := json.NewDecoder(bytes.NewReader(data))
	if _, err := decode.Token(); err != nil {
		return err
	}
	seen := map[json.Token]bool{}
	for decode.More() {
		key, err := decode.Token()
		if err != nil {
			return err
		}
		if seen[key] {
			return errors.New("duplicated sysctl keys are not allowed")
		}
		seen[key] = true
		var value string
		if err := decode.Decode(&value); err != nil {
			return err
		}
	}
	return nil
}

// checkAllowed refuses sysctls that no line of the node's list, regular expressions, matches.
func checkAllowed(sysctls map[string]string) error {
	data, err := os.ReadFile(allowlistFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	allowed := []string{}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" {
			allowed = append(allowed, line)
		}
	}
	for key := range sysctls {
		matched := false
		for _, pattern := range allowed {
			if matched, err = regexp.MatchString(pattern, key); err != nil {
				return err
			}
			if matched {
				break
			}
		}
		if !matched {
			return fmt.Errorf("Sysctl %s is not allowed. Only the following sysctls are allowed: %+v", key, allowed)
		}
	}
	return nil
}

// fileOf returns the file of a sysctl, which is one of the network's. IFNAME in the key is the
// pod's interface.
func fileOf(key, link string) (string, error) {
	path := strings.Replace(strings.ReplaceAll(key, ".", string(os.PathSeparator)), "IFNAME", link, 1)
	file := filepath.Join(sysctlDir, path)
	if !strings.HasPrefix(file, sysctlDir+"/net/") {
		return "", fmt.Errorf("invalid net sysctl key: %q", path)
	}
	return file, nil
}

// write sets a sysctl. A file that something has mounted over it is none.
func write(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return &os.PathError{Op: "statfs", Path: file, Err: err}
	}
	if fs.Type != unix.PROC_SUPER_MAGIC {
		return fmt.Errorf("%s is not a sysctl: it is on another filesystem than proc", file)
	}
	_, err = f.WriteString(value)
	return err
}

func add(_ context.Context, c *plugin.Call) (types.Result, error) {
	n, previous, err := loadChained(c)
	if err != nil {
		return nil, err
	}
	err = c.InPod(func() error {
		c.Stage("sysctls")
		for key, value := range n.Sysctls {
			file, err := fileOf(key, c.IfName)
			if err != nil {
				return err
			}
			if err := write(file, value); err != nil {
				return err
			}
		}
		if !n.any() {
			return nil
		}
		c.Stage("attributes of the link")
		if err := keep(c, n); err != nil {
			return err
		}
		return n.apply(c.IfName)
	})
	if err != nil {
		return nil, err
	}
	if n.MAC != "" {
		for _, in := range previous.Interfaces {
			if in.Name == c.IfName {
				in.Mac = n.MAC
			}
		}
	}
	return previous, nil
}

func del(_ context.Context, c *plugin.Call) error {
	n, err := load(c)
	if err != nil {
		return err
	}
	c.Stage("attributes of the link")
	_ = c.InPod(func() error { return restore(c, n) }) // the link goes anyway, or is gone
	return nil
}

func check(_ context.Context, c *plugin.Call) error {
	n, _, err := loadChained(c)
	if err != nil {
		return err
	}
	c.Stage("look at sysctls and the link")
	return c.InPod(func() error {
		for key, want := range n.Sysctls {
			file, err := fileOf(key, c.IfName)
			if err != nil {
				return err
			}
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if now := strings.TrimSuffix(string(data), "\n"); now != want {
				return fmt.Errorf("Error: Tuning configured value of %s is %s, current value is %s", file, want, now)
			}
		}
		return n.compare(c.IfName)
	})
}

// compare looks at the attributes of the link. Texts of errors are the reference's.
func (n *conf) compare(name string) error {
	link, err := netlinksafe.LinkByName(name)
	if err != nil {
		return fmt.Errorf("Cannot find container link %v", name)
	}
	now := link.Attrs()
	allMulti := now.RawFlags&unix.IFF_ALLMULTI != 0
	switch {
	case n.MAC != "" && n.MAC != now.HardwareAddr.String():
		return fmt.Errorf("Error: Tuning configured Ethernet of %s is %s, current value is %s", name, n.MAC, now.HardwareAddr)
	case n.Promisc != (now.Promisc != 0):
		return fmt.Errorf("Error: Tuning link %s configured promisc is %v, current value is %d", name, n.Promisc, now.Promisc)
	case n.MTU != 0 && n.MTU != now.MTU:
		return fmt.Errorf("Error: Tuning configured MTU of %s is %d, current value is %d", name, n.MTU, now.MTU)
	case n.AllMulti != nil && *n.AllMulti != allMulti:
		return fmt.Errorf("Error: Tuning configured all-multicast mode of %s is %v, current value is %v", name, *n.AllMulti, allMulti)
	case n.TxQueue != nil && *n.TxQueue != now.TxQLen:
		return fmt.Errorf("Error: Tuning configured Transmit Queue Length of %s is %d, current value is %d", name, *n.TxQueue, now.TxQLen)
	}
	return nil
}
