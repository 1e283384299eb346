// Reads the files of the device in /sys/class/infiniband and /dev/infiniband by all functions that
// are redirected, and some other files. Prints what it finds. The first argument is a directory to
// write to. The last line is the directory that the files are in.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

// Declared in the headers of providers.
const char *ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char *dir, const char *file, char *to, size_t size);

#define SYS "/sys/class/infiniband"
#define NODE_TYPE SYS "/uwarp0/node_type"
#define UVERBS "/dev/infiniband/uverbs0"
#define LINK SYS "/uwarp0/device/net/lo"

// Called before the constructors of all libraries.
static int early_stat = -1, early_open = -1, early_other = -1;
static void early(void) {
    struct stat found;
    early_stat = stat(SYS, &found);
    early_open = open(NODE_TYPE, O_RDONLY);
    early_other = open("/dev/null", O_RDONLY);
}
__attribute__((section(".preinit_array"), used)) static void (*const early_entry)(void) = early;

static const char *kind(int result, mode_t mode) {
    if (result != 0)
        return strerrorname_np(errno);
    return S_ISDIR(mode) ? "directory" : S_ISCHR(mode) ? "character device" : S_ISREG(mode) ? "file" : S_ISLNK(mode) ? "link" : "other";
}

#define STAT(name, path, call)                                  \
    do {                                                        \
        struct stat to;                                         \
        int result = call;                                      \
        printf("%s: %s\n", name, kind(result, to.st_mode));     \
    } while (0)

static void stats(void) {
    STAT("stat", SYS, stat(SYS, &to));
    STAT("stat", NODE_TYPE, stat(NODE_TYPE, &to));
    STAT("stat", UVERBS, stat(UVERBS, &to));
    STAT("stat64", SYS, stat64(SYS, (struct stat64 *)&to));
    STAT("lstat", UVERBS, lstat(UVERBS, &to));
    STAT("lstat", LINK, lstat(LINK, &to));
    STAT("lstat64", SYS, lstat64(SYS, (struct stat64 *)&to));
    STAT("fstatat", SYS, fstatat(AT_FDCWD, SYS, &to, 0));
    STAT("fstatat64", SYS, fstatat64(-1, SYS, (struct stat64 *)&to, 0));
    struct statx more;
    int result = statx(AT_FDCWD, UVERBS, 0, STATX_TYPE, &more);
    printf("statx: %s\n", kind(result, more.stx_mode));
    // The functions of programs that were linked with a C library before 2.33.
    static const char *const old[] = {"__xstat", "__xstat64", "__lxstat", "__lxstat64"};
    static const char *const old_at[] = {"__fxstatat", "__fxstatat64"};
    for (int i = 0; i < 4; i++) {
        int (*of)(int, const char *, struct stat *) = dlsym(RTLD_DEFAULT, old[i]);
        STAT(old[i], SYS, of(1, SYS, &to));
    }
    for (int i = 0; i < 2; i++) {
        int (*of)(int, int, const char *, struct stat *, int) = dlsym(RTLD_DEFAULT, old_at[i]);
        STAT(old_at[i], SYS, of(1, AT_FDCWD, SYS, &to, 0));
    }
    printf("access: %d %d %d\n", access(UVERBS, R_OK | W_OK), access(NODE_TYPE, R_OK), access(NODE_TYPE, W_OK));
    printf("euidaccess: %d %d\n", euidaccess(UVERBS, R_OK), eaccess(UVERBS, R_OK));
    printf("faccessat: %d %d\n", faccessat(AT_FDCWD, SYS, R_OK, 0), faccessat(AT_FDCWD, SYS "/none", R_OK, 0));
}

static void show(const char *name, int fd) {
    char text[100] = "";
    if (fd < 0 || read(fd, text, sizeof text - 1) < 0)
        snprintf(text, sizeof text, "%s\n", strerrorname_np(errno));
    close(fd);
    printf("%s: %s", name, text);
}

static void opens(void) {
    static const char *const fortified[] = {"__open_2", "__open64_2"};
    static const char *const fortified_at[] = {"__openat_2", "__openat64_2"};
    show("open", open(NODE_TYPE, O_RDONLY));
    show("open64", open64(NODE_TYPE, O_RDONLY));
    show("openat", openat(-1, NODE_TYPE, O_RDONLY));
    show("openat64", openat64(AT_FDCWD, NODE_TYPE, O_RDONLY));
    for (int i = 0; i < 2; i++) {
        int (*of)(const char *, int) = dlsym(RTLD_DEFAULT, fortified[i]);
        int (*of_at)(int, const char *, int) = dlsym(RTLD_DEFAULT, fortified_at[i]);
        show(fortified[i], of(NODE_TYPE, O_RDONLY));
        show(fortified_at[i], of_at(AT_FDCWD, NODE_TYPE, O_RDONLY));
    }
    show("open for writing", open(NODE_TYPE, O_RDWR));
    show("open of no file", open(SYS "/uwarp0/none", O_RDONLY));
    FILE *files[] = {fopen(NODE_TYPE, "r"), fopen64(NODE_TYPE, "r")};
    for (int i = 0; i < 2; i++) {
        char text[100] = "none\n";
        if (files[i]) {
            fgets(text, sizeof text, files[i]);
            fclose(files[i]);
        }
        printf("fopen: %s", text);
    }
    int fd = open(UVERBS, O_RDWR);
    printf("device: %d\n", fd < 0 ? errno : 0);
    close(fd);
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_shown(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static void list(const char *path) {
    struct dirent **names;
    int count = scandir(path, &names, is_shown, by_name);
    printf("%s:", path);
    for (int i = 0; i < count; i++) {
        printf(" %s", names[i]->d_name);
        free(names[i]);
    }
    if (count >= 0)
        free(names);
    printf("\n");
}

// Goes through all directories by opendir, and from the descriptor of each. Returns the number of
// files.
static int walk(DIR *dir) {
    int files = 0;
    if (!dir)
        return 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        struct stat to;
        if (fstatat(dirfd(dir), entry->d_name, &to, AT_SYMLINK_NOFOLLOW) != 0)
            printf("%s cannot be found\n", entry->d_name);
        else if (S_ISDIR(to.st_mode))
            files += walk(fdopendir(openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY)));
        else if (S_ISREG(to.st_mode))
            files++;
    }
    closedir(dir);
    return files;
}

static void directories(void) {
    list(SYS);
    list(SYS "/uwarp0");
    list(SYS "/uwarp0/device");
    list(SYS "/uwarp0/ports/1");
    list(SYS "/uwarp0/ports/1/counters");
    list(SYS "/uwarp0/ports/1/gid_attrs");
    list("/sys/class/infiniband_verbs");
    list("/sys/class/infiniband_verbs/uverbs0");
    list("/dev/infiniband");
    DIR *dir = opendir(SYS);
    printf("opendir: %s\n", dir ? "is open" : strerrorname_np(errno));
    printf("more than 20 files: %d\n", walk(dir) > 20);
}

static void links(void) {
    char to[PATH_MAX], *found;
    ssize_t (*chk)(const char *, char *, size_t, size_t) = dlsym(RTLD_DEFAULT, "__readlink_chk");
    ssize_t (*at_chk)(int, const char *, char *, size_t, size_t) = dlsym(RTLD_DEFAULT, "__readlinkat_chk");
    char *(*real_chk)(const char *, char *, size_t) = dlsym(RTLD_DEFAULT, "__realpath_chk");
    ssize_t len[4] = {readlink(LINK, to, sizeof to), readlinkat(AT_FDCWD, LINK, to, sizeof to),
                      chk(LINK, to, sizeof to, sizeof to), at_chk(AT_FDCWD, LINK, to, sizeof to, sizeof to)};
    printf("readlink: %zd %zd %zd %zd %.*s\n", len[0], len[1], len[2], len[3], len[3] < 0 ? 0 : (int)len[3], to);
    found = realpath(SYS "/uwarp0/./device", to);
    printf("realpath: %s\n", found ? found : strerrorname_np(errno));
    found = realpath(SYS "/uwarp0/device", NULL);
    printf("realpath: %s\n", found ? found : strerrorname_np(errno));
    free(found);
    found = real_chk(SYS "/uwarp0/device", to, sizeof to);
    printf("__realpath_chk: %s\n", found ? found : strerrorname_np(errno));
    found = canonicalize_file_name(SYS "//uwarp0");
    printf("canonicalize_file_name: %s\n", found ? found : strerrorname_np(errno));
    free(found);
    found = realpath(UVERBS, NULL);
    printf("realpath: %s\n", found ? found : strerrorname_np(errno));
    free(found);
    ssize_t lists[4] = {getxattr(SYS, "user.x", to, 1), lgetxattr(SYS, "user.x", to, 1), listxattr(SYS, NULL, 0),
                        llistxattr(SYS, NULL, 0)};
    printf("xattr: %zd %zd %d %d\n", lists[0], lists[1], lists[2] >= 0, lists[3] >= 0);
}

static void others(const char *scratch) {
    char path[PATH_MAX], text[10] = "", *found;
    struct stat to;
    snprintf(path, sizeof path, "%s/sysfs-other-%d", scratch, getpid());
    umask(0);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0640);
    printf("created: %d, mode %o\n", fd >= 0, fstat(fd, &to) == 0 ? to.st_mode & 0777 : 0);
    printf("written: %zd\n", write(fd, "text", 4));
    close(fd);
    FILE *file = fopen(path, "r");
    printf("read: %s\n", file && fgets(text, sizeof text, file) ? text : "nothing");
    fclose(file);
    found = realpath("/sys/class/../class", NULL);
    printf("realpath: %s\n", found);
    free(found);
    unlink(path);
    STAT("gone", path, stat(path, &to));
    STAT("/dev/null", "/dev/null", stat("/dev/null", &to));
    STAT("infiniband_mad", SYS, stat(SYS "_mad", &to));
    const char *volatile none = NULL;
    printf("NULL: %d\n", stat(none, &to) == -1 && errno == EFAULT);
}

static void *opens_and_is_cancelled(void *path) {
    pthread_cancel(pthread_self());
    open(path, O_RDONLY);
    return NULL;
}

static void cancelled(const char *path) {
    pthread_t thread;
    void *result = NULL;
    pthread_create(&thread, NULL, opens_and_is_cancelled, (void *)path);
    pthread_join(thread, &result);
    printf("cancelled: %d\n", result == PTHREAD_CANCELED);
}

#define PDS SYS "/uwarp0/ports/1/hw_counters/pds"

// A child counts its own objects, and keeps its own files.
static void counters(void) {
    int number;
    struct ibv_device **devices = ibv_get_device_list(&number);
    struct ibv_context *context = ibv_open_device(devices[0]);
    show("PDs", open(PDS, O_RDONLY));
    struct ibv_pd *pds[2] = {ibv_alloc_pd(context), ibv_alloc_pd(context)};
    show("PDs", open(PDS, O_RDONLY));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        show("PDs of the child", open(PDS, O_RDONLY));
        exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    printf("child: %d\n", status);
    show("PDs", open(PDS, O_RDONLY));
    printf("path: %s %s\n", devices[0]->ibdev_path, ibv_get_sysfs_path());
    char text[20] = "";
    printf("ibv_read_sysfs_file: %d ", ibv_read_sysfs_file(devices[0]->ibdev_path, "ports/1/link_layer", text, sizeof text));
    printf("%s\n", text);
    ibv_dealloc_pd(pds[0]);
    ibv_dealloc_pd(pds[1]);
    ibv_close_device(context);
    ibv_free_device_list(devices);
}

static volatile int stop, missing;

static void *reads(void *none) {
    while (!stop) {
        int fd = open(PDS, O_RDONLY);
        missing |= fd < 0;
        close(fd);
    }
    return none;
}

// Children are forked while other threads read. A child that hangs is killed.
static void forks(void) {
    pthread_t threads[4];
    int good = 0;
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, reads, NULL);
    for (int i = 0; i < 50; i++) {
        int status = 1;
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            _exit(open(NODE_TYPE, O_RDONLY) < 0);
        }
        waitpid(child, &status, 0);
        good += status == 0;
    }
    stop = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("forks: %d good, missing %d\n", good, missing);
}

int main(int count, char **arguments) {
    Dl_info of;
    setvbuf(stdout, NULL, _IOLBF, 0);
    dladdr(dlsym(RTLD_DEFAULT, "open"), &of);
    printf("open is in %s\n", strrchr(of.dli_fname, '/') + 1);
    printf("early: %d %d %d\n", early_stat, early_open >= 0, early_other >= 0);
    others(count > 1 ? arguments[1] : "/tmp");
    stats();
    opens();
    directories();
    links();
    cancelled("/dev/null");
    cancelled(NODE_TYPE);
    counters();
    forks();
    char path[PATH_MAX], root[PATH_MAX] = "";
    int dir = open("/sys/class/infiniband", O_RDONLY | O_DIRECTORY);
    snprintf(path, sizeof path, "/proc/self/fd/%d", dir);
    readlink(path, root, sizeof root - 1);
    printf("%s\n", dir < 0 ? "nowhere" : root);
    return 0;
}
