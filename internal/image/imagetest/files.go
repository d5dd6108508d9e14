package imagetest

import (
	"fmt"
	"os"
	"path/filepath"
)

// ManyFiles fills a directory, which need not exist, with n files in directories of a thousand.
func ManyFiles(dir string, n int) error {
	for i := range n {
		if i%1000 == 0 {
			if err := os.MkdirAll(filepath.Join(dir, fmt.Sprint(i/1000)), 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i/1000), fmt.Sprint(i)), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}
