import java.io.*; import java.nio.file.*; import java.util.*;
class ReadProperties {
    public static void main(String[] files) throws IOException {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        for (String file : files) {
            Properties read = new Properties();
            try (Reader reader = Files.newBufferedReader(Path.of(file))) { read.load(reader); }
            for (String name : new TreeSet<>(read.stringPropertyNames()))
                out.print(name + "\u001f" + read.getProperty(name) + "\u001e");
            out.print("\u001d");
        }
    }
}
