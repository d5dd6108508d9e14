package tuning

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/network/cni/plugin"
)

// kept are the attributes that a link had. The reference reads and writes the same files.
type kept struct {
	MAC      string `json:"mac,omitempty"`
	Promisc  *bool  `json:"promisc,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	AllMulti *bool  `json:"allmulti,omitempty"`
	TxQueue  *int   `json:"txQLen,omitempty"`
}

// fileOfKept is where the attributes of a pod's link are kept.
func fileOfKept(c *plugin.Call, n *conf) string {
	return filepath.Join(n.DataDir, c.ContainerID+"_"+c.IfName+".json")
}

// keep writes down the attributes that will change.
func keep(c *plugin.Call, n *conf) error {
	link, err := netlinksafe.LinkByName(c.IfName)
	if err != nil {
		return fmt.Errorf("failed to get %q: %w", c.IfName, err)
	}
	now := link.Attrs()
	var k kept
	if n.MAC != "" {
		k.MAC = now.HardwareAddr.String()
	}
	if n.Promisc {
		promisc := now.Promisc != 0
		k.Promisc = &promisc
	}
	if n.MTU != 0 {
		k.MTU = now.MTU
	}
	if n.AllMulti != nil {
		allMulti := now.RawFlags&unix.IFF_ALLMULTI != 0
		k.AllMulti = &allMulti
	}
	if n.TxQueue != nil {
		k.TxQueue = &now.TxQLen
	}
	if err := os.MkdirAll(n.DataDir, 0o600); err != nil {
		return fmt.Errorf("failed to create backup directory: %w", err)
	}
	data, err := json.MarshalIndent(k, "", " ")
	if err != nil {
		return fmt.Errorf("failed to marshall data for %q: %w", c.IfName, err)
	}
	if err := os.WriteFile(fileOfKept(c, n), data, 0o600); err != nil {
		return fmt.Errorf("failed to save file %s.json: %w", c.IfName, err)
	}
	return nil
}

// apply changes the attributes.
func (n *conf) apply(name string) error {
	if n.MAC != "" {
		if err := setMAC(name, n.MAC); err != nil {
			return err
		}
	}
	if n.Promisc {
		if err := onLink(name, netlink.SetPromiscOn); err != nil {
			return err
		}
	}
	if n.MTU != 0 {
		if err := setNumber(name, n.MTU, netlink.LinkSetMTU); err != nil {
			return err
		}
	}
	if n.AllMulti != nil {
		if err := setAllMulti(name, *n.AllMulti); err != nil {
			return err
		}
	}
	if n.TxQueue != nil {
		return setNumber(name, *n.TxQueue, netlink.LinkSetTxQLen)
	}
	return nil
}

// restore sets the attributes as they were, and removes the file. Nothing without a file.
func restore(c *plugin.Call, n *conf) error {
	file := fileOfKept(c, n)
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("failed to open file %q: %w", file, err)
	}
	var k kept
	if json.Unmarshal(data, &k) != nil {
		return nil // written halfway: nothing has changed since
	}
	if _, err := netlinksafe.LinkByName(c.IfName); err != nil {
		return nil //nolint:nilerr // the link is gone
	}
	var faults []string
	try := func(what string, err error) {
		if err != nil {
			faults = append(faults, fmt.Sprintf("failed to restore %s: %v", what, err))
		}
	}
	if k.MTU != 0 {
		try("MTU", setNumber(c.IfName, k.MTU, netlink.LinkSetMTU))
	}
	if k.MAC != "" {
		try("MAC address", setMAC(c.IfName, k.MAC))
	}
	if k.Promisc != nil {
		set := netlink.SetPromiscOff
		if *k.Promisc {
			set = netlink.SetPromiscOn
		}
		try("promiscuous mode", onLink(c.IfName, set))
	}
	if k.AllMulti != nil {
		try("all-multicast mode", setAllMulti(c.IfName, *k.AllMulti))
	}
	if k.TxQueue != nil {
		try("transmit queue length", setNumber(c.IfName, *k.TxQueue, netlink.LinkSetTxQLen))
	}
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "; "))
	}
	if err := os.Remove(file); err != nil {
		return fmt.Errorf("failed to remove file %v: %w", file, err)
	}
	return nil
}

func onLink(name string, set func(netlink.Link) error) error {
	link, err := netlinksafe.LinkByName(name)
	if err != nil {
		return fmt.Errorf("failed to get %q: %w", name, err)
	}
	return set(link)
}

func setNumber(name string, value int, set func(netlink.Link, int) error) error {
	return onLink(name, func(link netlink.Link) error { return set(link, value) })
}

func setMAC(name, text string) error {
	mac, err := net.ParseMAC(text)
	if err != nil {
		return fmt.Errorf("invalid args %v for MAC addr: %w", text, err)
	}
	return onLink(name, func(link netlink.Link) error { return netlink.LinkSetHardwareAddr(link, mac) })
}

func setAllMulti(name string, on bool) error {
	if on {
		return onLink(name, netlink.LinkSetAllmulticastOn)
	}
	return onLink(name, netlink.LinkSetAllmulticastOff)
}
