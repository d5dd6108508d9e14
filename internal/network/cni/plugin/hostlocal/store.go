package hostlocal

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

const (
	// defaultDir is where the reference keeps stores.
	defaultDir = "/var/lib/cni/networks"
	// lastPrefix begins the names of the files with the last address of a range.
	lastPrefix = "last_reserved_ip."
)

// store is the reference's, with the same files. The reference truncates the file of the last address before it writes
// it. File systems such as ext4 begin to write a file that was truncated to the disk when it is closed, and that takes
// longer than all other work of the plugin.
type store struct {
	*disk.Store
	dir string
}

var _ backend.Store = (*store)(nil)

func openStore(network, dataDir string) (*store, error) {
	s, err := disk.New(network, dataDir)
	if err != nil {
		return nil, err
	}
	if dataDir == "" {
		dataDir = defaultDir
	}
	return &store{s, filepath.Join(dataDir, network)}, nil
}

// Reserve implements backend.Store.
func (s *store) Reserve(id, ifname string, ip net.IP, rangeID string) (reserved bool, err error) {
	file := disk.GetEscapedPath(s.dir, ip.String())
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_EXCL|os.O_CREATE, 0o600)
	if errors.Is(err, os.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, err = f.WriteString(strings.TrimSpace(id) + disk.LineBreak + ifname)
	if err = errors.Join(err, f.Close()); err != nil {
		return false, errors.Join(err, os.Remove(file))
	}
	if err := overwrite(disk.GetEscapedPath(s.dir, lastPrefix+rangeID), ip.String()); err != nil {
		return false, err
	}
	return true, nil
}

// overwrite writes a file in place, and cuts it off behind the text.
func overwrite(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Size() > int64(len(text)) {
		err = f.Truncate(int64(len(text)))
	}
	if err == nil {
		_, err = f.WriteString(text)
	}
	return errors.Join(err, f.Close())
}
