package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
)

// java returns a command that runs a class of the jars of a directory, or an error if the machine has
// no Java or the directory no jars.
func java(jars, dir string, flags []string, class string, args ...string) (*exec.Cmd, error) {
	binary, err := exec.LookPath("java")
	if err != nil {
		return nil, &missing{"there is no java", "install it with apt-get install openjdk-17-jre-headless"}
	}
	if found, _ := filepath.Glob(filepath.Join(jars, "*.jar")); len(found) == 0 {
		return nil, &missing{fmt.Sprintf("there are no jars in %s", jars), "fetch them with make peers-jars, which needs Maven"}
	}
	// Java itself expands the asterisk of a class path.
	cmd := exec.Command(binary, append(append(flags, "-cp", filepath.Join(jars, "*")), append([]string{class}, args...)...)...)
	cmd.Dir = dir
	return cmd, nil
}

// versionOf returns the version in the name of a jar, such as 5.0.2 in cassandra-all-5.0.2.jar.
func versionOf(jars, name string) string {
	found, _ := filepath.Glob(filepath.Join(jars, name+"-[0-9]*.jar"))
	if len(found) == 0 {
		return ""
	}
	base := filepath.Base(found[0])
	return base[len(name)+1 : len(base)-len(".jar")]
}
