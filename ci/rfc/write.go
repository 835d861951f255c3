package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance/catalogue"
)

// write gives the claims under root the words of the catalogue, and returns how many files
// it changed. It leaves malformed claims and unknown ids alone: check reports them.
func write(root string, c *catalogue.Catalogue) (changed int, err error) {
	claims, err := scan(root)
	if err != nil {
		return 0, err
	}
	var files []string
	for _, cl := range claims {
		if file, _, _ := strings.Cut(cl.where, ":"); !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	for _, file := range files {
		old, err := os.ReadFile(file)
		if err != nil {
			return changed, err
		}
		lines := strings.Split(string(old), "\n")
		for i, line := range lines {
			lines[i] = rewrite(line, c)
		}
		text := []byte(strings.Join(lines, "\n"))
		if bytes.Equal(text, old) {
			continue
		}
		info, err := os.Stat(file)
		if err == nil {
			err = os.WriteFile(file, text, info.Mode().Perm())
		}
		if err != nil {
			return changed, err
		}
		changed++
	}
	return changed, nil
}

// rewrite returns a line of Go; if it has a claim, the claim has the catalogue's words.
func rewrite(line string, c *catalogue.Catalogue) string {
	before, text, ok := strings.Cut(line, mark)
	if !ok {
		return line
	}
	m := form.FindStringSubmatch(text)
	if m == nil {
		return line
	}
	req := c.ByID(m[2])
	if req == nil || req.Brief == "" {
		return line
	}
	return fmt.Sprintf("%s%s%s %s %s", before, mark, m[1], m[2], req.Brief)
}
