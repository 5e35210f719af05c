// Package compose holds the tests of the compose file and of the container image. They have a module of their own, because the libraries
// of compose and BuildKit that read these files concern nothing else.
package compose
