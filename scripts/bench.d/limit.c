/* The limit that scripts/bench compares with: only the system calls that a durable router cannot do without.
 *
 * limit ROOT FLOWS: for every letter in ROOT/outbox, in batches of 1,000, with the same promises to the disk as
 * postmaster (docs/states.md): read the letter, write it with two lines inserted as a temporary of its mailbox, one
 * syncfs for all of them; a journal, synced and renamed; every temporary renamed without replacing; the mailboxes
 * synced; the log appended and synced; the letters unlinked, the outbox synced; the journal unlinked.
 *
 * What it leaves out is what makes a router: it reads no registry, parses no header beyond finding its end, hashes
 * nothing, knows no history, asks nobody whether a letter is still being written, and could not recover. Letter n is
 * number n / FLOWS + 1 of flow n % FLOWS, whose mailbox is ROOT/inboxes/council.desk-<flow>.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

enum { BATCH = 1000, MAX_FLOWS = 64, MAX_LETTER = 1 << 20, MAX_RECORD = 1024 };

static char letter[MAX_LETTER];
static char journal[BATCH * MAX_RECORD * 2];
static char lines[BATCH * MAX_RECORD];
static char temporary[BATCH][64], target[BATCH][96];

static void check(int good, const char *what) {
    if (!good) {
        perror(what);
        exit(74);
    }
}

static int directory(int parent, const char *path) {
    int descriptor = openat(parent, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(descriptor >= 0, path);
    return descriptor;
}

static void write_whole(int descriptor, const char *data, size_t size, const char *what) {
    while (size) {
        ssize_t done = write(descriptor, data, size);
        check(done > 0, what);
        data += done;
        size -= (size_t)done;
    }
}

static int by_name(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static size_t list(int outbox, char ***names) {
    size_t count = 0, room = 1024;
    DIR *entries = fdopendir(dup(outbox));
    check(entries != NULL, "outbox");
    *names = malloc(room * sizeof **names);
    for (struct dirent *entry; (entry = readdir(entries));) {
        if (entry->d_name[0] == '.')
            continue;
        if (count == room)
            *names = realloc(*names, (room *= 2) * sizeof **names);
        check(*names != NULL, "memory");
        (*names)[count++] = strdup(entry->d_name);
    }
    closedir(entries);
    qsort(*names, count, sizeof **names, by_name);
    return count;
}

/* Write one letter as a temporary of its mailbox. */
static void copy(int outbox, const char *name, int tmp, const char *path, const char *inserted) {
    int source = openat(outbox, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    check(source >= 0, name);
    ssize_t size = read(source, letter, sizeof letter);
    check(size > 4 && size < (ssize_t)sizeof letter, name);
    close(source);
    char *end = memmem(letter, (size_t)size, "\n---\n", 5);
    check(end != NULL, "no end of the header");
    size_t head = (size_t)(end + 1 - letter);
    int copied = openat(tmp, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    check(copied >= 0, path);
    struct iovec parts[] = {{letter, head}, {(char *)inserted, strlen(inserted)}, {end + 1, (size_t)size - head}};
    check(writev(copied, parts, 3) == size + (ssize_t)parts[1].iov_len, path);
    check(close(copied) == 0, path);
}

int main(int count, char **arguments) {
    if (count != 3 || atoi(arguments[2]) < 1 || atoi(arguments[2]) > MAX_FLOWS) {
        fprintf(stderr, "usage: limit ROOT FLOWS\n");
        return 64;
    }
    int flows = atoi(arguments[2]), tmp[MAX_FLOWS], unread[MAX_FLOWS], process = (int)getpid();
    int root = directory(AT_FDCWD, arguments[1]);
    int outbox = directory(root, "outbox"), private = directory(root, ".postmaster");
    for (int flow = 0; flow < flows; flow++) {
        char path[64];
        snprintf(path, sizeof path, "inboxes/council.desk-%d/tmp", flow);
        tmp[flow] = directory(root, path);
        snprintf(path, sizeof path, "inboxes/council.desk-%d/unread", flow);
        unread[flow] = directory(root, path);
    }
    char **names;
    size_t letters = list(outbox, &names);
    for (size_t first = 0; first < letters; first += BATCH) {
        size_t size = letters - first < BATCH ? letters - first : BATCH;
        char *journal_end = journal, *lines_end = lines;
        for (size_t i = 0; i < size; i++) {
            size_t number = first + i;
            int flow = (int)(number % (size_t)flows);
            unsigned sequence = (unsigned)(number / (size_t)flows + 1);
            char inserted[96];
            snprintf(inserted, sizeof inserted, "id: %032zx\nsequence: %u\n", number, sequence);
            snprintf(temporary[i], sizeof temporary[i], "postmaster-%d-%zu", process, number);
            snprintf(target[i], sizeof target[i], "20260304T100000Z-%06u-%032zx.md", sequence, number);
            copy(outbox, names[number], tmp[flow], temporary[i], inserted);
            char *line = lines_end;
            lines_end += snprintf(lines_end, MAX_RECORD,
                "{\"time\":\"2026-03-04T10:00:00.000000Z\",\"action\":\"delivered\",\"id\":\"%032zx\",\"sequence\":%u,"
                "\"correlation_id\":\"release-2026-03-%d\",\"from\":\"orchestrator@council.internal\","
                "\"to\":\"desk-%d@council.internal\",\"type\":\"council.evaluate\",\"subject\":\"Review of change %06zu "
                "in the billing service\",\"sent_at\":\"2026-03-04T10:00:00.000Z\",\"agent\":\"council.desk-%d\","
                "\"file\":\"%.80s\",\"path\":\"inboxes/council.desk-%d/unread/%s\",\"status\":\"2.1.5\"}\n",
                number, sequence, flow, flow, number, flow, names[number], flow, target[i]);
            journal_end += snprintf(journal_end, 2 * MAX_RECORD, "[\"%.80s\",\"%s\",\"%s\",%.*s]\n", names[number],
                temporary[i], target[i], (int)(lines_end - line - 1), line);
        }
        check(syncfs(root) == 0, "syncfs"); /* the temporaries, and their names */

        int made = openat(private, "journal.tmp", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        check(made >= 0, "journal.tmp");
        write_whole(made, journal, (size_t)(journal_end - journal), "journal.tmp");
        check(fsync(made) == 0 && close(made) == 0, "journal.tmp");
        check(renameat2(private, "journal.tmp", private, "journal", RENAME_NOREPLACE) == 0, "journal");
        check(fsync(private) == 0, ".postmaster"); /* the commit */

        for (size_t i = 0; i < size; i++) {
            int flow = (int)((first + i) % (size_t)flows);
            check(renameat2(tmp[flow], temporary[i], unread[flow], target[i], RENAME_NOREPLACE) == 0, target[i]);
        }
        for (int flow = 0; flow < flows && (size_t)flow < size; flow++)
            check(fsync(unread[flow]) == 0, "unread");

        int log = openat(root, "logs/delivery-log.jsonl", O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
        check(log >= 0, "log");
        write_whole(log, lines, (size_t)(lines_end - lines), "log");
        check(fsync(log) == 0 && close(log) == 0, "log");
        if (first == 0) {
            int logs = directory(root, "logs");
            check(fsync(logs) == 0, "logs");
            close(logs);
        }

        for (size_t i = 0; i < size; i++)
            check(unlinkat(outbox, names[first + i], 0) == 0, names[first + i]);
        check(fsync(outbox) == 0, "outbox");
        check(unlinkat(private, "journal", 0) == 0, "journal");
    }
    return 0;
}
