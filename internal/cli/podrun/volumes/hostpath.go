package volumes

import (
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/errs"
)

// ensureHostPath checks or creates a path of the host, as its type says.
func ensureHostPath(host *corev1.HostPathVolumeSource) error {
	info, err := os.Stat(host.Path)
	missing := errors.Is(err, os.ErrNotExist)
	if err != nil && !missing {
		return err
	}
	kind := *host.Type
	switch {
	case missing && (kind == corev1.HostPathUnset || kind == corev1.HostPathDirectoryOrCreate):
		return os.MkdirAll(host.Path, 0o755)
	case missing && kind == corev1.HostPathFileOrCreate:
		return os.WriteFile(host.Path, nil, 0o644)
	case missing:
		return fmt.Errorf("hostPath %s does not exist: %w", host.Path, errs.Invalid)
	}
	is := map[corev1.HostPathType]bool{
		corev1.HostPathUnset:             true,
		corev1.HostPathDirectoryOrCreate: info.IsDir(),
		corev1.HostPathDirectory:         info.IsDir(),
		corev1.HostPathFileOrCreate:      info.Mode().IsRegular(),
		corev1.HostPathFile:              info.Mode().IsRegular(),
		corev1.HostPathSocket:            info.Mode().Type() == os.ModeSocket,
		corev1.HostPathCharDev:           info.Mode().Type() == os.ModeDevice|os.ModeCharDevice,
		corev1.HostPathBlockDev:          info.Mode().Type() == os.ModeDevice,
	}
	if !is[kind] {
		return fmt.Errorf("hostPath %s is not a %s: %w", host.Path, kind, errs.Invalid)
	}
	return nil
}
